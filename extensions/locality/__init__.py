"""Locality of accesses to tables: profiles of traces, and accesses generated with a profile (docs/locality.md)."""

from pathlib import Path
from typing import TYPE_CHECKING

from common.command import Command
from common.extensions import Core, KeyGroup, ReadyMadeValues
from data_prep.dataset.kinds import ROWS, NamedSource, SourceKind
from extensions.locality.keys import TraceConfig

if TYPE_CHECKING:
    from extensions.locality.rows import TraceRows


def register(core: Core) -> None:
    """Add the commands, and the source of rows with its keys and values."""
    core.add(
        NamedSource("trace", SourceKind(ROWS, group="trace", generator=generator, files=("profile",))),
        KeyGroup("DataConfig", "trace", TraceConfig),
        ReadyMadeValues("data_prep", Path(__file__).parent / "conf"),
    )
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


def generator(config: TraceConfig, threads: int) -> "TraceRows":
    """Return the generator of shards; imports its modules only now."""
    from extensions.locality.rows import TraceRows

    return TraceRows(config, threads)
