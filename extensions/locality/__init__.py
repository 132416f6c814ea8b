"""Rows whose ids repeat as a trace's do: `data.source=trace` (docs/synthetic.md)."""

from pathlib import Path
from typing import TYPE_CHECKING

from common.extensions import Core, KeyGroup, ReadyMadeValues
from data_prep.dataset.kinds import ROWS, NamedSource, SourceKind
from extensions.locality.keys import TraceConfig

if TYPE_CHECKING:
    from extensions.locality.trace import TraceRows


def register(core: Core) -> None:
    """Add the source of rows with its keys and values."""
    core.add(
        NamedSource("trace", SourceKind(ROWS, group="trace", generator=make_generator, files=("directory",))),
        KeyGroup("DataConfig", "trace", TraceConfig),
        ReadyMadeValues("data_prep", Path(__file__).parent / "conf"),
    )


def make_generator(config: TraceConfig, threads: int) -> "TraceRows":
    """Return the generator of shards; imports its modules only now."""
    from extensions.locality.trace import TraceRows

    return TraceRows(config, threads)
