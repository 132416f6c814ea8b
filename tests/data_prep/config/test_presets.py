"""Where rows are not as published any more, a line says so."""

import pytest

from data_prep.config import report_differences, resolve_rules
from tests.data_prep.conftest import Capture, config

TORCHREC = "output will differ from TorchRec's because of data.dense_transform=raw"
AMD = "output will differ from AMD's because of data.dense_transform=log1p, data.max_categories=9"
DIFFERENCES = [
    ("data.encoding=torchrec data.frequency_threshold=2", None),
    ("data.encoding=torchrec data.dense_transform=raw", TORCHREC),
    ("data.encoding=torchrec_fixed data.split.method=random", "because of data.split.method=random"),
    ("data.encoding=dlrm_kaggle data.sampling.negative_drop_rate=0.5", "of data.sampling.negative_drop_rate=0.5"),
    ("data.encoding=amd_blog", None),
    ("data.encoding=amd_blog data.dense_transform=log1p data.max_categories=9", AMD),
    ("data.encoding=vocabulary data.dense_transform=raw", None),
]


@pytest.mark.parametrize(("keys", "message"), DIFFERENCES)
def test_what_is_not_as_published_is_said(capsys: Capture, keys: str, message: str | None) -> None:
    report_differences(resolve_rules(config("data.path=out", *keys.split()), num_sources=2))
    error = capsys.readouterr().err
    assert (error == "") if message is None else error.endswith(message + "\n")
