"""Knobs of datasets whose ids are made, not encoded."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class IdDistribution(Enum):
    """How often ids occur.

    uniform: evenly; zipf: id k as often as 1 / (k + 1)^exponent; pareto: Pareto-distributed numbers of shape
    `exponent`, rounded down, modulo the table's rows, as in MLPerf's multi-hot data.
    """

    uniform = "uniform"
    zipf = "zipf"
    pareto = "pareto"


@dataclass
class RandomConfig:
    """Rows for pure speed: nothing can be learned from them, for labels are drawn by themselves.

    Attributes:
        rows: of the train split.
        eval_rows: of val and of test each, which are other rows than train's.
        tables: rows of every feature's table, a list; or mlperf_v2, criteo_kaggle for theirs.
        max_rows_per_table: larger tables are cut to this; None: they are not.
        num_dense: dense features, uniform between 0 and 1.
        distribution: see IdDistribution.
        exponent: of zipf (default 1.05) or pareto (default 0.25).
        bag_sizes: ids per bag, of every feature or a list; or mlperf_v2.
        bags_vary: a bag has from 1 to that many ids, each number being as likely.
        click_rate: share of positive labels.
        seed: decides every byte.
    """

    rows: int = 200_000
    eval_rows: int = 20_000
    tables: Any = "mlperf_v2"
    max_rows_per_table: int | None = None
    num_dense: int = 13
    distribution: IdDistribution = IdDistribution.uniform
    exponent: float | None = None
    bag_sizes: Any = 1
    bags_vary: bool = False
    click_rate: float = 0.25
    seed: int = 0


@dataclass
class TraceConfig:
    """Rows whose ids have the locality of a trace (see data_prep/locality.py and docs/synthetic.md).

    Attributes:
        profile: file that `python -m data_prep.profile` wrote.
        rows: of the train split; None: as many as the profiled trace had.
        eval_rows: of val and of test each, which follow after train's.
        click_rate: share of positive labels, roughly; they follow from a planted model as in data=synthetic.
        difficulty: of that model.
        seed: decides every byte.
    """

    profile: str | None = None
    rows: int | None = None
    eval_rows: int = 20_000
    click_rate: float = 0.25
    difficulty: float = 1.0
    seed: int = 0


@dataclass
class LocalityConfig:
    """What `python -m data_prep.profile`, `.generate` and `.compare` are to do.

    Attributes:
        trace: a dataset's directory, a profile, or text files, one per table.
        other: likewise, to be compared with it.
        split: of a dataset.
        profile: file to write (profile), or to generate from (generate).
        to: directory for generated text traces.
        accesses: to generate per table; None: as many as the profiled trace had.
        seed: of what is generated.
        plot: file for the hit rates of both, an SVG.
    """

    trace: Any = None
    other: Any = None
    split: str = "train"
    profile: str | None = None
    to: str | None = None
    accesses: int | None = None
    seed: int = 0
    plot: str | None = None
