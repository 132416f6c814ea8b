"""A platform refuses arithmetic that it lacks, and logs arithmetic that is slow on it."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from app.config.train import Platform, Precision
from app.runtime import platform as runtime
from app.runtime.platform import check_precision, require_strict_products
from common.errors import UserError
from tests.app.conftest import REPOSITORY, SMALL

WARNING = "runtime.precision=bf16: this processor does not support products in bf16"


@pytest.mark.parametrize("fast", [False, True])
def test_slow_bf16_is_warned_of(fast: bool, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: fast)
    for platform, precision in [(Platform.cuda, Precision.bf16), (Platform.cpu, Precision.fp32)]:
        check_precision(precision, platform)
    assert not logged.text
    check_precision(Precision.bf16, Platform.cpu)
    assert (WARNING in logged.text) == (not fast)


def test_tf32_is_of_gpus() -> None:
    check_precision(Precision.tf32, Platform.cuda)
    with pytest.raises(UserError, match=r"^runtime\.precision=tf32: CPUs do not support it"):
        check_precision(Precision.tf32, Platform.cpu)


@pytest.fixture
def threads() -> Iterator[None]:
    """Set the number of threads back after the test."""
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


def products(number: int) -> list[torch.Tensor]:
    """Return outputs and gradients of layers of many widths on so many threads, from other values than the probe's."""
    torch.set_num_threads(number)
    rows, results = runtime.PROBED_ROWS, []
    for num_in, num_out in itertools.product(*runtime.PROBED_WIDTHS):
        generator = torch.Generator().manual_seed(num_in * 10_000 + num_out)
        inputs = torch.randn(rows, num_in, generator=generator, requires_grad=True)
        weight = torch.randn(num_out, num_in, generator=generator, requires_grad=True)
        outputs = inputs @ weight.T
        outputs.backward(torch.randn(rows, num_out, generator=generator))
        results += [outputs.detach(), *(each.grad for each in (inputs, weight) if each.grad is not None)]
    return results


@pytest.mark.medium
@pytest.mark.usefixtures("threads")
def test_products_do_not_depend_on_threads_or_several_are_refused() -> None:
    """In MKL's strict mode, which `app` sets, or of a library that is so by itself."""
    require_strict_products(1)
    if not runtime.are_equal_on_threads(2):
        with pytest.raises(UserError, match=r"^runtime\.num_threads=2: not with .* give runtime\.num_threads=1"):
            require_strict_products(2)
        return
    assert all(map(torch.equal, products(1), products(2)))


@pytest.mark.usefixtures("threads")
def test_one_thread_is_taken_where_products_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless several are given."""
    monkeypatch.setattr(runtime, "are_equal_on_threads", lambda num_threads: False)
    assert (runtime.layout_threads(None, 2), torch.get_num_threads()) == (1, 1)
    assert runtime.layout_threads(1, 1) == 1
    with pytest.raises(UserError, match=r"^runtime\.num_threads=2: not with .* give runtime\.num_threads=1"):
        runtime.layout_threads(2, 2)


@pytest.mark.slow("processes")
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch does not multiply by MKL")
@pytest.mark.parametrize(
    ("command", "mode"),
    [
        (["-m", "app.train"], "AUTO"),
        (["-c", "import torchrec, runpy; runpy.run_module('app.train', run_name='__main__', alter_sys=True)"], None),
    ],
)
def test_mkl_in_another_mode_is_refused(command: list[str], mode: str | None, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment |= {"PYTHONPATH": str(REPOSITORY), **({} if mode is None else {"MKL_CBWR": mode})}
    keys = [*SMALL, "run.name=x", "train.deterministic=layout", "data.source=random", "data.path=rows"]
    arguments = [sys.executable, *command, *keys]
    refusal = subprocess.run(arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refusal.returncode == 2
    assert f"MKL_CBWR={mode or 'AUTO,STRICT'}: is not in force or not strict" in refusal.stderr
