"""The limits of the keys of `python -m app.reproduce`."""

from extensions.reproduce.keys import ReproduceConfig
from tests.common.test_keys import OF_RUNS
from tests.key_limits import ONE, check_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ReproduceConfig, {**OF_RUNS, "seeds": ONE, "processes": ONE})
