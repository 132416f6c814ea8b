"""Paths of any characters reach data_prep as they are."""

import pytest

from app.data.prepare import _quote
from common.cli import compose_config
from data_prep.__main__ import CONFIG_DIRECTORY
from data_prep.config.keys import PrepConfig


@pytest.mark.parametrize(
    "path", ["/a b/c", "/a,b", "/a[1]", "/a=b", "/a'b", '/a"b', "/ü", "/a\\", "/a\\'b", "/a\\b", "*.gz"]
)
def test_a_path_survives_hydras_grammar(path: str) -> None:
    config = compose_config(
        PrepConfig, CONFIG_DIRECTORY, [f"data.path={_quote(path)}", f"data.raw={_quote([path, 'x'])}"]
    )
    assert config.data.path == path
    assert config.data.raw == [path, "x"]
