"""Runs of HSTU in the Python interface."""

import json
from pathlib import Path

import pytest

import clickwork
from common.keys import to_plain
from tests.app.conftest import composed


def test_a_run_of_hstu_is_refused_by_name(tmp_path: Path) -> None:
    config = composed("model=hstu", "run.name=x")
    (tmp_path / "config.yaml").write_text(json.dumps(to_plain(config)))
    with pytest.raises(
        clickwork.Error, match=r"a model of HSTU, which scores no single rows; use python -m app\.recom"
    ):
        clickwork.load(tmp_path)
