"""Proposal of a table's schema by its rows: `python -m data_prep.inspect`, `data.schema=auto` (docs/inspect.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.command import Command
from common.extensions import Core
from data_prep.dataset.kinds import SchemaProposer

if TYPE_CHECKING:
    from data_prep.sources.discover import Source


def register(core: Core) -> None:
    """Add the command, and the proposer for `data.schema=auto`."""
    core.add(
        SchemaProposer(propose),
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


def propose(sources: Sequence[Source], label: str | None) -> str:
    """Return the schema's YAML for some files. Raise UserError if their rows have no label."""
    from extensions.inspect.proposal import propose_schema

    return propose_schema(sources, label).text
