"""Plans that need no planner: the type of each table is given, and the processes that hold least take it."""

from collections.abc import Mapping, Sequence

from app.sharding.choices import Choice
from app.sharding.plan import Plan, Shard, Table, TablePlan, blocks
from common.errors import UserError


class _Loads:
    """Elements held by each process so far."""

    def __init__(self, world_size: int, local_world_size: int) -> None:
        self.of_rank = [0] * world_size
        self.machines = [range(first, first + local_world_size) for first in range(0, world_size, local_world_size)]

    def lightest(self, ranks: Sequence[int], count: int) -> list[int]:
        """The `count` processes among these that hold least, in order of rank."""
        return sorted(sorted(ranks, key=lambda rank: self.of_rank[rank])[:count])

    def lightest_machines(self, count: int) -> list[range]:
        """The `count` machines that hold least, in order."""
        loads = {machine: sum(self.of_rank[rank] for rank in machine) for machine in self.machines}
        return sorted(sorted(self.machines, key=lambda machine: loads[machine])[:count], key=lambda m: m.start)

    def take(self, shards: Sequence[Shard], ranks: Sequence[int]) -> tuple[Shard, ...]:
        """The shards on these processes, one for each."""
        for shard, rank in zip(shards, ranks, strict=True):
            self.of_rank[rank] += shard.rows * shard.columns
        return tuple(shard._replace(rank=rank) for shard, rank in zip(shards, ranks, strict=True))


def place(tables: Sequence[Table], chosen: Mapping[str, Choice], world_size: int, local_world_size: int) -> Plan:
    """The plan of tables to which nothing is left to choose, largest first.

    Raises:
        UserError: the processes are not the same number on every machine.
    """
    require_equal_machines(world_size, local_world_size)
    loads = _Loads(world_size, local_world_size)
    placed: dict[str, TablePlan] = {}
    for table in sorted(tables, key=lambda table: -table.num_embeddings * table.embedding_dim):
        choice = chosen[table.name]
        ((kind, kernel),) = choice.options
        shards = _shards(kind, table, loads, choice.min_partition)
        placed[table.name] = TablePlan(kind, kernel, shards, choice.cache_load_factor)
    return Plan(world_size, local_world_size, {table.name: placed[table.name] for table in tables})


def require_equal_machines(world_size: int, local_world_size: int) -> None:
    """Raises UserError unless every machine has the same number of processes."""
    if world_size % local_world_size:
        raise UserError(
            f"{world_size} processes, {local_world_size} on this machine: start the same number on each machine"
        )


def _shards(kind: str, table: Table, loads: _Loads, min_partition: int | None) -> tuple[Shard, ...]:
    world, local, machines = len(loads.of_rank), len(loads.machines[0]), len(loads.machines)
    most = {"column_wise": world, "table_column_wise": local, "grid_shard": machines}.get(kind, 1)
    columns = shard_columns(table.embedding_dim, most, min_partition)
    shards = blocks(kind, table, world, local, columns)
    everyone = range(world)
    if kind in ("data_parallel", "row_wise"):
        return loads.take(shards, everyone)
    if kind in ("table_wise", "column_wise"):
        return loads.take(shards, loads.lightest(everyone, len(shards)))
    if kind == "table_row_wise":
        return loads.take(shards, loads.lightest_machines(1)[0])
    if kind == "table_column_wise":
        return loads.take(shards, loads.lightest(loads.lightest_machines(1)[0], len(shards)))
    chosen = loads.lightest_machines(table.embedding_dim // columns)
    return loads.take(shards, [rank for machine in chosen for rank in machine])


def shard_columns(embedding_dim: int, most_shards: int, min_partition: int | None) -> int:
    """Columns of each shard: the least that makes at most so many equal shards.

    They are multiples of 4 (FBGEMM), and not fewer than `min_partition`.
    """
    least = max(min_partition or 4, 4)
    for shards in range(most_shards, 1, -1):
        width, rest = divmod(embedding_dim, shards)
        if not rest and width % 4 == 0 and width >= least:
            return width
    return embedding_dim
