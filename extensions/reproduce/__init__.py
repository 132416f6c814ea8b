"""A recipe at several seeds, compared with its published figure: `python -m app.reproduce` (docs/reproduce.md)."""

import re
from pathlib import Path

from common.command import Command
from common.extensions import Core, FilesBesideRun, ReadyMadeValues


def register(core: Core) -> None:
    """Add the command, its values, and the names of its files in the directory of the recipe's own run."""
    conf = Path(__file__).parent / "conf"
    core.add(
        ReadyMadeValues("app", conf),
        FilesBesideRun(re.compile(r"seed_\d+|reproduce\.(json|html)(\.tmp)?|\.reproduce\.lock")),
        Command(
            name="reproduce",
            module="app.reproduce",
            function="extensions.reproduce.command:main",
            summary="a recipe at several seeds beside its published figure",
            schema="extensions.reproduce.command:ReproduceConfig",
            config="reproduce",
            config_dir=conf.parents[2] / "app/conf",
            has_groups=True,
            check="extensions.reproduce.command:validate_reproduce",
        ),
    )
