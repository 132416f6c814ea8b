"""Traces of accesses to tables: their locality as a profile, and accesses with that locality (docs/locality.md)."""

from pathlib import Path

from common.command import Command
from common.extensions import Core


def register(core: Core) -> None:
    """Add the commands."""
    for name, summary in (
        ("profile-trace", "the locality of a dataset's ids, or of a text trace"),
        ("compare-traces", "how far apart the locality of two traces is"),
        ("generate-trace", "synthetic accesses with the locality of a profile"),
    ):
        verb = name.partition("-")[0]
        core.add(
            Command(
                name=name,
                module=f"extensions.locality.{verb}",
                function=f"extensions.locality.{verb}:main",
                summary=summary,
                schema=f"extensions.locality.keys:{verb.capitalize()}Config",
                config="schema",
                config_dir=Path(__file__).parent,
            )
        )
