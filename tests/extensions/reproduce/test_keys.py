"""The limits of the keys of `python -m app.reproduce`."""

from extensions.reproduce.keys import ReproduceConfig
from tests.common.test_keys import OF_RUNS, ONE, require_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    require_limits(ReproduceConfig, {**OF_RUNS, "seeds": ONE, "processes": ONE})
