"""The limits of the keys of `python -m app.baselines`."""

from extensions.baselines.fit import BaselinesConfig
from tests.key_limits import BLOCKS, POSITIVE, check_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(BaselinesConfig, {"rows": BLOCKS, "seconds": POSITIVE})
