"""Knobs of generated rows: `data=synthetic`, `data=random`, `data=trace`; and of locality profiles."""

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
class SyntheticConfig:
    """Criteo-like rows whose labels come from a known model (see data_prep/synthetic/teacher.py).

    Attributes:
        rows: over all days.
        days: files to write, day_0.tsv and so on, with equal shares of the rows.
        seed: of the columns, the teacher and the rows.
        click_rate: expected share of positive labels.
        max_cardinality: distinct values of the largest categorical column; the others shrink in proportion to
            the square root of Criteo Kaggle's. 10131227: Kaggle's own.
        difficulty: divides what a click's logit owes to the columns; above 1, labels are noisier.
        interaction: factor of the interactions between columns, of pairs and of threes; 0: there are none.
        drift: angle in radians, up to pi / 2, by which effects and interactions turn from day to day; those of
            days d apart correlate by cos(drift * d).
        direct: rows go straight to shards: the same rows, but no raw files are written.
    """

    rows: int = 200_000
    days: int = 1
    seed: int = 0
    click_rate: float = 0.25
    max_cardinality: int = 50_000
    difficulty: float = 1.0
    interaction: float = 1.0
    drift: float = 0.1
    direct: bool = False


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
    """Rows whose ids have the locality of a trace (see data_prep/traces/histogram.py and docs/synthetic.md).

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
