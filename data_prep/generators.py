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
