"""Rows whose ids repeat as a trace's do: `data.source=trace` (docs/synthetic.md)."""

from pathlib import Path

from common.command import later
from common.extensions import Core, KeyGroup, ReadyMadeValues
from data_prep.dataset.kinds import ROWS, NamedSource, SourceKind
from extensions.locality.keys import TraceConfig


def register(core: Core) -> None:
    """Add the source of rows with its keys and values."""
    core.add(
        NamedSource(
            "trace",
            SourceKind(
                ROWS, group="trace", generator=later("extensions.locality.trace:TraceRows"), files=("directory",)
            ),
        ),
        KeyGroup("DataConfig", "trace", TraceConfig),
        ReadyMadeValues("data_prep", Path(__file__).parent / "conf"),
    )
