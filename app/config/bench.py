"""The configuration of `python -m app.bench`: that of a run, and what to measure of it."""

from dataclasses import dataclass, field
from typing import Any

from app.config import AppConfig
from app.config.checks import require_at_least, require_positive
from common.errors import UserError

STEP_FAMILIES = ("embedding_bag", "interaction", "mlp", "optimizer_step", "collective", "input", "step")
FAMILIES = (*STEP_FAMILIES, "inference")


@dataclass
class ShapeConfig:
    """Sizes in place of the recipe's; null: the recipe's."""

    batch_size: int | None = None  # of each process; null: train.global_batch_size over the processes
    num_dense: int | None = None  # null: Criteo's 13
    num_embeddings: list[int] | None = None  # rows of each table; null: those the recipe's source publishes …
    most_rows: int = 1_000_000  # … but no table beyond this
    bag_sizes: list[int] | None = None  # ids a bag of each feature; null: data.multi_hot.sizes, or one


@dataclass
class InferenceConfig:
    """The latency and throughput of scoring."""

    batch_sizes: list[int] = field(default_factory=lambda: [4**power for power in range(9)])  # of each process
    least_runs: int = 100  # timed one by one at each size, however long that takes: fewer have no 99th percentile


@dataclass
class BenchConfig(AppConfig):
    """What to measure, and how long."""

    operators: Any = None  # families or family/variant prefixes, a list; null: all but inference, which takes minutes
    seconds: float = 0.5  # spent on each
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    out: str | None = None  # also write the JSON to this file


def chosen_operators(operators: Any) -> list[str]:
    """The names or beginnings of names to measure.

    Raises:
        UserError: a family that is not known.
    """
    chosen = (
        list(STEP_FAMILIES) if operators is None else [operators] if isinstance(operators, str) else list(operators)
    )
    for name in chosen:
        if not isinstance(name, str) or name.split("/")[0] not in FAMILIES:
            raise UserError(f"operators={name}: must begin with one of {', '.join(FAMILIES)}")
    return chosen


def validate_bench(config: BenchConfig) -> None:
    """Raises UserError for values that cannot work."""
    chosen_operators(config.operators)
    shape = config.shape
    require_positive({"seconds": config.seconds})
    require_at_least(
        {
            "shape.batch_size": (shape.batch_size, 1),
            "shape.num_dense": (shape.num_dense, 1),
            "shape.most_rows": (shape.most_rows, 1),
            "inference.least_runs": (config.inference.least_runs, 1),
        }
    )
    lists = {
        "shape.num_embeddings": shape.num_embeddings,
        "shape.bag_sizes": shape.bag_sizes,
        "inference.batch_sizes": config.inference.batch_sizes,
    }
    for key, values in lists.items():
        if values is not None and (not values or min(values) < 1):
            raise UserError(f"{key}={values}: must be a list of numbers of at least 1")
