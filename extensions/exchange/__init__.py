"""Conversion of datasets to and from other programs' files: the command `interchange` (docs/data.md)."""

from pathlib import Path

from common.command import Command
from common.extensions import Core


def register(core: Core) -> None:
    """Add the command."""
    core.add(
        Command(
            name="interchange",
            module="extensions.exchange",
            function="extensions.exchange.__main__:main",
            summary="datasets to and from the files of other programs",
            schema="extensions.exchange.__main__:InterchangeConfig",
            config="schema",
            config_dir=Path(__file__).parent,
        )
    )
