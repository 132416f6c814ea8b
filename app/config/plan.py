"""`plan`: what `python -m app.plan` is asked."""

from dataclasses import dataclass, field
from typing import Any

from app.config.checks import require_at_least
from app.config.published_tables import published_tables
from common.errors import UserError


@dataclass
class PlanConfig:
    """Beside the tables and hardware of the other groups."""

    num_embeddings: Any = None  # rows by feature, a list, or such a name as mlperf_v2; null: the dataset's or recipe's
    bag_sizes: Any = None  # mean ids a bag of each feature, a list; null: the dataset's or the recipe's
    out: str | None = None  # the plan and its forecast as JSON; `sharding.plan=FILE` trains by it. "-": to stdout
    against: str | None = None  # another plan's JSON, to see what differs
    topologies: list[str] = field(default_factory=list)  # what if: these instead, names or YAML files
    batch_sizes: list[int] = field(default_factory=list)  # what if: these global batches instead
    devices: list[int] = field(default_factory=list)  # what if: so many devices a machine instead


def validate_plan(plan: PlanConfig) -> None:
    """Raises UserError for values that cannot work."""
    rows = plan.num_embeddings.values() if isinstance(plan.num_embeddings, dict) else plan.num_embeddings
    if isinstance(rows, str):
        published_tables(rows)
    elif rows is not None and (isinstance(rows, int) or not all(isinstance(n, int) and n > 0 for n in rows)):
        raise UserError(f"plan.num_embeddings={plan.num_embeddings}: must be numbers of rows, a list or by feature")
    bags = plan.bag_sizes
    if bags is not None and (not isinstance(bags, list) or not all(isinstance(n, (int, float)) for n in bags)):
        raise UserError(f"plan.bag_sizes={bags}: must be a list, one number for each feature")
    for key in ("batch_sizes", "devices"):
        require_at_least({f"plan.{key}": (min(getattr(plan, key), default=None), 1)})
