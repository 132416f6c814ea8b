"""Rows whose ids repeat as a trace's do: `data.source=trace` (docs/synthetic.md)."""

from dataclasses import dataclass
from pathlib import Path

from common.extensions import Core, KeyGroup, ReadyMadeValues, later
from common.keys import key
from data_prep.dataset.kinds import ROWS, NamedSource, SourceKind


@dataclass(frozen=True)
class TraceConfig:
    """Keys of `data.source=trace`."""

    directory: str | None = key(
        None, "directory of facebookresearch/dlrm's stack-distance files, NAME.log of the feature NAME"
    )
    rows: int = key(200_000, "rows of the train split", at_least=1)
    eval_rows: int = key(20_000, "rows of val and of test each, which follow train's", at_least=0)
    enable_padding: bool = key(False, "once all ids of a file were used, draw no more of them as new")
    click_rate: float = key(0.25, "share of positive labels", within="[0, 1]")
    seed: int = key(0, "decides every byte", at_least=0)


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
