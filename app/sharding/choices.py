"""What the configuration leaves open for each table."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.config import OptimizerName, ShardingConfig
from app.config.sharding import AUTO, UVM_KERNELS, kernels_allowed, kernels_of, of_table, types_allowed
from app.sharding.plan import Table, shardable
from common.errors import UserError


@dataclass(frozen=True)
class Choice:
    """The sharding types and compute kernels that one table may have, and the key that says so."""

    key: str
    options: tuple[tuple[str, str], ...]  # (type, kernel)
    min_partition: int | None
    cache_load_factor: float | None

    @property
    def is_forced(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.options) == 1

    @property
    def types(self) -> list[str]:
        """The sharding types among the options."""
        return list(dict.fromkeys(kind for kind, _ in self.options))


def choices(
    config: ShardingConfig, optimizer: OptimizerName, tables: Sequence[Table], device_type: str
) -> dict[str, Choice]:
    """Each table's choice.

    Raises:
        UserError: a table that there is not, no option, or a kernel that this device has not.
    """
    names = {name for table in tables for name in (table.name, *table.features)}
    for name in config.tables:
        if name not in names:
            raise UserError(f"sharding.tables.{name}: no such table or feature; there are {', '.join(sorted(names))}")
    result = {}
    for table in tables:
        key, own = of_table(config, table.name, list(table.features))
        types = shardable(f"{key}.types", types_allowed(own.types, optimizer, f"{key}.types"), table)
        kernels = kernels_allowed(own.kernels, types, own.types == AUTO, f"{key}.kernels")
        if device_type == "cpu" and (asked := [kernel for kernel in kernels if kernel in UVM_KERNELS]):
            raise UserError(
                f"{key}.kernels={asked[0]}: keeps a table in host memory for a GPU to read; a CPU's tables are there "
                "anyway, use fused"
            )
        options = tuple((kind, kernel) for kind in types for kernel in kernels_of(kind, kernels))
        cached = any(kernel == "fused_uvm_caching" for _, kernel in options)
        result[table.name] = Choice(key, options, own.min_partition, own.cache_load_factor if cached else None)
    return result
