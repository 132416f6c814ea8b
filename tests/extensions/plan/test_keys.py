"""The limits of the keys of `python -m app.plan`."""

from extensions.plan.keys import PlanAppConfig
from tests.common.test_keys import OF_RUNS
from tests.key_limits import LIST, check_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(PlanAppConfig, {**OF_RUNS, **dict.fromkeys(("plan.batch_sizes", "plan.devices"), LIST)})
