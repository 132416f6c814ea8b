"""Keys of `python -m app.plan`, and what is refused of them."""

from dataclasses import dataclass, field
from typing import Any

from app.config.app_config import AppConfig, validate
from app.config.model import published_tables
from common.errors import UserError
from common.keys import key


@dataclass(frozen=True)
class PlanConfig:
    """Keys of the plan, besides the tables and hardware of other groups."""

    num_embeddings: Any = key(
        None, "rows by feature, a list, or a name such as mlperf_v2; null: the dataset's or recipe's"
    )
    bag_sizes: Any = key(None, "list of the mean ids per bag of each feature; null: the dataset's or the recipe's")
    out: str | None = key(
        None,
        'file for the plan and its forecast as JSON; `sharding.plan=FILE` trains with it; "-": stdout',
        is_file=True,
    )
    reasons: bool = key(False, "print the reasons for each table's placement; plan.out always holds them")
    against: str | None = key(None, "another plan's JSON to compare with")
    topologies: list[str] = key([], "what if: compare these topologies, names or YAML files")
    batch_sizes: list[int] = key([], "what if: compare these global batches", at_least=1)
    devices: list[int] = key([], "what if: compare these numbers of devices per machine", at_least=1)


@dataclass(frozen=True)
class PlanAppConfig(AppConfig):
    """Configuration of `python -m app.plan`: a run's, and the keys `plan`."""

    plan: PlanConfig = field(default_factory=PlanConfig)


def validate_plan(config: PlanAppConfig) -> None:
    """Raise UserError for invalid values, those of a run included, and for sizes that are no numbers."""
    validate(config)
    plan = config.plan
    rows = plan.num_embeddings.values() if isinstance(plan.num_embeddings, dict) else plan.num_embeddings
    if isinstance(rows, str):
        published_tables(rows)
    elif rows is not None and (
        isinstance(rows, (int, float)) or not all(isinstance(count, int) and count > 0 for count in rows)
    ):
        raise UserError(f"plan.num_embeddings={plan.num_embeddings}: must be numbers of rows, a list or by feature")
    bags = plan.bag_sizes
    if bags is not None and (
        not isinstance(bags, list) or not all(isinstance(size, (int, float)) and size >= 0 for size in bags)
    ):
        raise UserError(f"plan.bag_sizes={bags}: must be a list, one number for each feature")
