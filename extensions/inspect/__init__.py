"""Proposal of a table's schema by its rows: `python -m data_prep.inspect`, `data.schema=auto` (docs/inspect.md)."""

from pathlib import Path

from common.command import Command
from common.extensions import Core, later
from data_prep.dataset.kinds import SchemaProposer


def register(core: Core) -> None:
    """Add the command, and the proposer for `data.schema=auto`."""
    core.add(
        SchemaProposer(later("extensions.inspect.proposal:proposed_text")),
        Command(
            name="inspect",
            module="data_prep.inspect",
            function="extensions.inspect.command:main",
            summary="propose the schema of your own table, and show its columns on a page",
            schema="extensions.inspect.command:InspectConfig",
            config="schema",
            config_dir=Path(__file__).parent,
        ),
    )
