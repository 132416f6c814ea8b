"""`sharding`: tables over processes."""

from dataclasses import dataclass
from typing import Any

from common.errors import UserError

SHARDING_TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise")


@dataclass
class ShardingConfig:
    """How tables are spread over processes."""

    types: Any = "table_wise"  # of every table, alone or as a list of one; one of SHARDING_TYPES


def sharding_type(config: ShardingConfig) -> str:
    """The one sharding type of all tables.

    Raises:
        UserError: not a known type.
    """
    types = [config.types] if isinstance(config.types, str) else config.types
    if not isinstance(types, list) or len(types) != 1 or types[0] not in SHARDING_TYPES:
        raise UserError(f"sharding.types={config.types}: must be one of {', '.join(SHARDING_TYPES)}")
    return str(types[0])
