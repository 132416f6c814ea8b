import pytest

from common.sizes import in_words


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (15.3e9, "15.3 GB"),
        (2.5e12, "2.5 TB"),
        (1.2e15, "1,200.0 TB"),
    ],
)
def test_the_unit_fits(size: float | int, text: str) -> None:
    assert in_words(size) == text
