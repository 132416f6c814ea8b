"""Keys of the commands on traces, and of the source of rows with a trace's locality."""

from dataclasses import dataclass, field
from typing import Any

from common.keys import MISSING, key

SPLIT = "split of a dataset"
REMEDY = "make one with python -m extensions.locality.profile locality.trace=DATASET locality.profile=FILE.npz"


@dataclass(frozen=True)
class ProfileKeys:
    """The trace to profile."""

    trace: Any = key(MISSING, "a dataset's directory, or text files, one per table", example="data/synthetic")
    profile: str = key(MISSING, "file to write", example="profile.npz")
    split: str = key("train", SPLIT)


@dataclass(frozen=True)
class ProfileConfig:
    """Configuration of `clickwork profile-trace`."""

    locality: ProfileKeys = field(default_factory=ProfileKeys)


@dataclass(frozen=True)
class CompareKeys:
    """The traces to compare."""

    trace: Any = key(
        MISSING, "a dataset's directory, a profile, or text files, one per table", example="data/synthetic"
    )
    other: Any = key(MISSING, "second trace, in the same form, for comparison", example="data/trace")
    split: str = key("train", SPLIT)
    plot: str | None = key(None, "SVG file for the hit rates of both")


@dataclass(frozen=True)
class CompareConfig:
    """Configuration of `clickwork compare-traces`."""

    locality: CompareKeys = field(default_factory=CompareKeys)


@dataclass(frozen=True)
class GenerateKeys:
    """The accesses to generate."""

    profile: str = key(MISSING, "profile to generate from", example="profile.npz")
    to: str = key(MISSING, "directory for generated text traces", example="traces")
    accesses: int | None = key(
        None, "accesses to generate per table; null: as many as the profiled trace had", at_least=1
    )
    seed: int = key(0, "seed of the generated accesses", at_least=0)


@dataclass(frozen=True)
class GenerateConfig:
    """Configuration of `clickwork generate-trace`."""

    locality: GenerateKeys = field(default_factory=GenerateKeys)


@dataclass(frozen=True)
class TraceConfig:
    """Keys of `data.source=trace`: rows whose ids have the locality of a trace."""

    profile: str | None = key(None, "file that `clickwork profile-trace` wrote")
    rows: int | None = key(None, "rows of the train split; null: as many as the profiled trace had", at_least=1)
    eval_rows: int = key(20_000, "rows of val and of test each, which follow train's", at_least=0)
    click_rate: float = key(
        0.25,
        "approximate share of positive labels, from a ground-truth model as with data.source=synthetic",
        within="(0, 1)",
    )
    difficulty: float = key(1.0, "as for data.synthetic", within="[0.1, inf)")
    seed: int = key(0, "decides every byte", at_least=0)
