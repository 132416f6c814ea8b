"""The version of this tool, from the checkout's pyproject.toml or the installed distribution."""

import re
from importlib import metadata
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def _find_version() -> str:
    if PYPROJECT.is_file():
        match = re.search(r'^version = "([^"]+)"', PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE)
        assert match is not None
        return match[1]
    return metadata.version("clickwork")


VERSION = _find_version()
