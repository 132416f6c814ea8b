"""What a platform cannot compute in is refused, and what it computes in slowly is said."""

import pytest
import torch

from app.config import Platform, Precision
from app.runtime.platform import check_precision
from common.errors import UserError

WARNING = "runtime.precision=bf16: this processor does not support products in bf16"


@pytest.mark.parametrize("is_supported", [False, True])
def test_bf16_without_its_instructions_is_warned_of(
    is_supported: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: is_supported)
    for platform, precision in [(Platform.cuda, Precision.bf16), (Platform.cpu, Precision.fp32)]:
        check_precision(precision, platform)
    assert not caplog.text
    check_precision(Precision.bf16, Platform.cpu)
    assert (WARNING in caplog.text) == (not is_supported)


def test_tf32_is_of_gpus() -> None:
    check_precision(Precision.tf32, Platform.cuda)
    with pytest.raises(UserError, match=r"^runtime\.precision=tf32: CPUs do not support it"):
        check_precision(Precision.tf32, Platform.cpu)
