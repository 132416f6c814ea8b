"""Places of output files."""

import pytest

from app.config.train import require_place
from tests.error_lines import refused


@pytest.mark.parametrize("out", ["", ".", "/", ".."])
def test_a_directory_is_no_output_file(out: str) -> None:
    refused("is a directory; give a file in it", require_place, "out", out)


def test_missing_directories_above_an_output_file_are_fine_but_no_file_is_one() -> None:
    require_place("out", "none/of/these.json")
    refused("out=/dev/null/a/b: /dev/null is a file; choose another directory", require_place, "out", "/dev/null/a/b")
