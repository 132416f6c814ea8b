"""Search of settings on val by Optuna, and finalists at several seeds: `python -m app.tune` (docs/reproduce.md)."""

from pathlib import Path

from common.command import Command
from common.extensions import Core, ReadyMadeValues


def register(core: Core) -> None:
    """Add the command and its values."""
    conf = Path(__file__).parent / "conf"
    core.add(
        ReadyMadeValues("app", conf),
        Command(
            name="tune",
            module="app.tune",
            function="extensions.tune.command:main",
            summary="search settings on val, and say which to take",
            schema="extensions.tune.command:TuneConfig",
            config="tune",
            config_dir=conf.parents[2] / "app/conf",
            has_groups=True,
            check="extensions.tune.command:validate_tune",
        ),
    )
