"""Tables over processes: the plan, how it is made and executed, and access to the shards in place."""

from app.sharding.choices import Choice, choices
from app.sharding.collections import table_of, table_types
from app.sharding.execute import distribute, plan_summary
from app.sharding.forecast import forecast
from app.sharding.placement import place
from app.sharding.plan import Plan, Shard, Table, TablePlan, read_plan
from app.sharding.planner import Estimate, Workload, estimates, options, search
from app.sharding.tables import TableShard, fill_tables, local_shards, table_blocks, table_weights

__all__ = [
    "Choice",
    "Estimate",
    "Plan",
    "Shard",
    "Table",
    "TablePlan",
    "TableShard",
    "Workload",
    "choices",
    "distribute",
    "estimates",
    "fill_tables",
    "forecast",
    "local_shards",
    "options",
    "place",
    "plan_summary",
    "read_plan",
    "search",
    "table_blocks",
    "table_of",
    "table_types",
    "table_weights",
]
