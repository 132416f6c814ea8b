"""Sharding plans and forecasts for hardware that need not be present: `python -m app.plan` (docs/scaling.md)."""

from pathlib import Path

from common.command import Command
from common.extensions import Core, ReadyMadeValues


def register(core: Core) -> None:
    """Add the command and its values, which extend those of app."""
    conf = Path(__file__).parent / "conf"
    core.add(
        ReadyMadeValues("app", conf),
        Command(
            name="plan",
            module="app.plan",
            function="extensions.plan.command:main",
            summary="the sharding plan and its forecast for hardware you need not have",
            schema="extensions.plan.keys:PlanAppConfig",
            config="plan",
            config_dir=conf.parents[2] / "app/conf",
            has_groups=True,
            check="extensions.plan.keys:validate_plan",
            leave="app.runtime.environment:leave",
        ),
    )
