"""The limits of the keys of the commands on traces."""

from extensions.locality.keys import CompareConfig, GenerateConfig, ProfileConfig
from tests.key_limits import ONE, ZERO, check_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ProfileConfig, {})
    check_limits(CompareConfig, {})
    check_limits(GenerateConfig, {"locality.accesses": ONE, "locality.seed": ZERO})
