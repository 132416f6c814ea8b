"""The limits of the keys of trackers."""

from extensions.trackers.keys import TrackersConfig
from tests.key_limits import Limits, check_limits

PORT: Limits = ([0, 65536], [1, 65535], "at least 1 and at most 65535")


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(TrackersConfig, {"prometheus_port": PORT})
