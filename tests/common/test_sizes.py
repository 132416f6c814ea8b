from common.files import format_bytes

SIZES = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 15.3e9: "15.3 GB"}
SIZES |= {2.5e12: "2.5 TB", 1.2e15: "1,200.0 TB"}


def test_the_unit_fits() -> None:
    assert {size: format_bytes(size) for size in SIZES} == SIZES
