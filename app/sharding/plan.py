"""A sharding plan, read from a file or from a model's tables, and its execution by TorchRec."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets, placement
from torchrec.distributed.types import (
    CacheParams,
    CommOp,
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingPlan,
)

from app.config.sharding import (
    COLUMN_TYPES,
    KERNELS,
    PLAN_FORMAT,
    SHARDING_TYPES,
    Plan,
    QCommConfig,
    TableBlock,
    kernels_of,
)
from app.model.embeddings import TableArch, TableSpec, table_of
from app.runtime.library_patches import count_empty_shards, replace_narrow_lookups
from common.documents import Json, decode
from common.errors import UserError
from common.signals import discard_native_stdout

# TorchRec's types for an EmbeddingCollection without data_parallel, for which FBGEMM reads wrong rows of several
# tables on CPU.
BY_ID_TYPES = ("table_wise", "row_wise", "column_wise")

PlanT = TypeVar("PlanT", bound=Plan)


def to_torchrec(plan: Plan, device_type: str) -> EmbeddingModuleShardingPlan:
    """Return the tables' sharding by name, in the form that DistributedModelParallel takes."""
    sharding = EmbeddingModuleShardingPlan()
    for name, table in plan.tables.items():
        spec = [
            ShardMetadata(
                shard_offsets=[shard.row, shard.column],
                shard_sizes=[shard.rows, shard.columns],
                placement=placement(device_type, shard.rank, plan.local_world_size),
            )
            for shard in table.shards
        ]
        cache = None if table.cache_load_factor is None else CacheParams(load_factor=table.cache_load_factor)
        # TorchRec takes no shards for a replicated table.
        sharding[name] = ParameterSharding(
            sharding_type=table.type,
            compute_kernel=table.kernel,
            ranks=[shard.rank for shard in table.shards],
            sharding_spec=None if table.type == "data_parallel" else EnumerableShardingSpec(spec),
            cache_params=cache,
        )
    return sharding


def shardable(key: str, kinds: Sequence[str], table: TableSpec) -> list[str]:
    """Return those of the sharding types that the table can have. Raises UserError, by `key`, if there are none."""
    possible, reason = list(kinds), ""
    if table.by_id:
        possible = [kind for kind in possible if kind in BY_ID_TYPES]
        reason = f"is looked up id by id, which can be {', '.join(BY_ID_TYPES)}"
    if table.storage != "fp32" and "data_parallel" in possible:
        possible.remove("data_parallel")
        reason = "is not stored as fp32 (model.tables.storage), and torch would compute its update in that precision"
    if not possible:
        raise UserError(f"{key}={', '.join(kinds)}: {table.name} {reason}")
    return possible


def blocks(kind: str, table: TableSpec, world_size: int, local_world_size: int, columns: int) -> list[TableBlock]:
    """Return the parts into which TorchRec's kernels cut a table; their ranks are still 0.

    columns: width of a shard, for the types that cut columns.
    """
    # A tensor on the meta device has a shape and takes no memory.
    shape = torch.empty(table.num_embeddings, table.embedding_dim, device="meta")
    sizes, offsets = calculate_shard_sizes_and_offsets(
        shape, world_size, local_world_size, kind, col_wise_shard_dim=columns if kind in COLUMN_TYPES else None
    )
    return [
        TableBlock(0, row, column, rows, width) for (rows, width), (row, column) in zip(sizes, offsets, strict=True)
    ]


def load_plan(key: str, path: Path, kind: type[PlanT]) -> PlanT:
    """Return a plan, an instance of `kind`, from its file, which the configuration's `key` names."""
    try:
        content = path.read_bytes()
        # Check the format before the keys, since another format has other keys.
        if (form := decode(content, Json).get("format")) != PLAN_FORMAT:
            raise ValueError(f"of format {form}, not {PLAN_FORMAT}")
        return decode(content, kind)
    except OSError as error:
        raise UserError(f"{key}={path}: not readable ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{key}={path}: not a plan of `python -m app.plan plan.out=FILE` ({error})") from error


def read_plan(path: Path, tables: Sequence[TableSpec], world_size: int, local_world_size: int) -> Plan:
    """Return a plan from its file; require the shards that TorchRec cuts from these tables for these processes."""
    key = f"sharding.plan={path}"
    plan = load_plan("sharding.plan", path, Plan)
    for unit, planned_number, number in (
        ("processes", plan.world_size, world_size),
        ("processes a machine", plan.local_world_size, local_world_size),
    ):
        if planned_number != number:
            raise UserError(f"{key}: made for {planned_number} {unit}, but there are {number}; plan again")
    unknown = [name for name in plan.tables if name not in {table.name for table in tables}]
    missing = [table.name for table in tables if table.name not in plan.tables]
    if unknown or missing:
        example = f"it has {unknown[0]}, the model has not" if unknown else f"the model has {missing[0]}, it has not"
        raise UserError(f"{key}: made for other tables: {example}; plan again")
    for table in tables:
        kind, shards = plan.tables[table.name].type, plan.tables[table.name].shards
        shardable(key, [kind], table)
        # The width of shards is the plan's own choice, so the expected cut takes it from the plan.
        width = min((shard.columns for shard in shards), default=0)
        try:
            expected = blocks(kind, table, world_size, local_world_size, width)
        except ValueError as error:
            raise UserError(f"{key}: {table.name}: {error}") from error
        ranks_fit = all(0 <= shard.rank < world_size for shard in shards)
        if not ranks_fit or [shard._replace(rank=0) for shard in shards] != expected:
            rows = max((shard.row + shard.rows for shard in shards), default=0)
            raise UserError(
                f"{key}: {table.name}: made for another table, of {rows} rows; here it has {table.num_embeddings} rows "
                f"of {table.embedding_dim}; plan again"
            )
    planned = {table.name: plan.tables[table.name] for table in tables}
    return Plan(world_size=world_size, local_world_size=local_world_size, tables=planned)


def tables_in_order(arch: TableArch) -> list[TableSpec]:
    """Return tables in the order of plans and `SparseArch`'s collections: pooled tables, then the others by width."""
    return sorted(arch.tables, key=lambda table: (table.by_id, table.embedding_dim if table.by_id else 0))


BLOCK_BYTES = 1 << 26  # size of a block of a table that travels to rank 0


class EverySharder(EmbeddingBagCollectionSharder):
    """Offers every sharding type and kernel that was configured.

    TorchRec hides row-wise types on CPU, though they work there on gloo, and offers kernels that nobody asked for.
    """

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(SHARDING_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


class EveryByIdSharder(EmbeddingCollectionSharder):
    """Sharder of tables that are looked up id by id, as `EverySharder`, but of BY_ID_TYPES alone."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(BY_ID_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


def make_sharders(
    fused_params: dict[str, Any], registry: dict[str, QuantizedCommCodecs] | None
) -> list[ModuleSharder[nn.Module]]:
    """Return a sharder for each kind of table collection."""
    return [
        kind(fused_params=fused_params, qcomm_codecs_registry=registry) for kind in (EverySharder, EveryByIdSharder)
    ]


def distribute(
    model: nn.Module,
    plan: Plan,
    fused_params: dict[str, Any],
    qcomm: QCommConfig,
    device: torch.device,
    averages: bool = True,
) -> DistributedModelParallel:
    """Shard the model's tables over the process group as planned and replicate the rest; a collective call.

    averages: whether TorchRec and DistributedDataParallel average the processes' gradients.
    """
    # TorchRec keeps this setting for the whole process, so each model sets it anew.
    set_gradient_division(averages)
    tables = to_torchrec(plan, device.type)
    parts: dict[str, EmbeddingModuleShardingPlan] = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            is_pooled = isinstance(module, EmbeddingBagCollection)
            names = module.embedding_bags if is_pooled else module.embeddings
            parts[path] = EmbeddingModuleShardingPlan({name: tables[name] for name in names})
    with discard_native_stdout():  # some sharding types make process groups
        sharded = DistributedModelParallel(
            model,
            device=device,
            plan=ShardingPlan(plan=parts),
            sharders=make_sharders(fused_params, codecs(qcomm)),
            data_parallel_wrapper=_ReplicateAmongMany(averages),
        )
    for module in sharded.modules():
        if isinstance(module, ShardedEmbeddingBagCollection | ShardedEmbeddingCollection):
            if not averages:  # TorchRec wraps data-parallel tables' lookups in DDP
                module._lookups = [getattr(lookup, "module", lookup) for lookup in module._lookups]
            for lookup in module._lookups:
                count_empty_shards(lookup)
                replace_narrow_lookups(lookup)
    return sharded


def codecs(qcomm: QCommConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Return codecs that compress embeddings and their gradients for exchange between processes; None for fp32.

    They are put together here because TorchRec's own function turns bf16 into fp16 on CPU, although gloo now carries
    bf16.
    """
    if (qcomm.forward, qcomm.backward) == ("fp32", "fp32"):
        return None
    config = QCommsConfig(CommType(qcomm.forward), CommType(qcomm.backward))
    return {operation.name: get_qcomm_codecs(config) for operation in CommOp}


class _ReplicateAmongMany(DefaultDataParallelWrapper):
    """Uses DDP only to average several processes' gradients: those of a single one it would copy to and fro."""

    def __init__(self, averages: bool) -> None:
        super().__init__()
        self._averages = averages

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Let torch average gradients of dense layers over processes, unless micro-batches do."""
        if env.world_size > 1 and self._averages:
            super().wrap(dmp, env, device)
        else:
            dmp._dmp_wrapped_module = dmp._dmp_wrapped_module.to(device)


def fill_tables(model: DistributedModelParallel, rows: Callable[[str, int, int], NDArray[np.float32]]) -> None:
    """Overwrite each table in place; `rows(table, start, stop)` returns values [stop - start, d]."""
    with torch.no_grad():
        for table, weight in table_weights(model):
            for (row, column), values in local_shards(weight):
                height, width = values.shape
                # Whole rows are drawn even for a shard of columns, so values do not depend on the sharding.
                values.copy_(torch.from_numpy(rows(table, row, row + height))[:, column : column + width])


def table_weights(model: DistributedModelParallel) -> Iterator[tuple[str, Tensor]]:
    """Yield each table's name and its (sharded) weight, in the order of declaration, which all processes share."""
    weights = {table_of(key): value for key, value in model.state_dict().items()}
    for table in model.module.sparse_arch.tables:
        yield table.name, weights[table.name]


def local_shards(tensor: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    """Return this process's parts of a tensor: their offsets in it, and their values in place.

    A tensor that is not sharded is a single part.
    """
    if not isinstance(tensor, ShardedTensor):
        return [((0,) * tensor.dim(), tensor)]
    return [(tuple(shard.metadata.shard_offsets), shard.tensor) for shard in tensor.local_shards()]


def table_blocks(weight: Tensor) -> Iterator[Tensor]:
    """Yield a table as consecutive blocks of rows on rank 0's CPU, [rows, d] float32 however it is stored.

    A collective call: every process must exhaust the iterator; only rank 0's yields. No process holds more than one
    block of BLOCK_BYTES besides its own shards, and shards travel as CPU tensors, so any backend can carry them.
    """
    num_rows, width = weight.shape
    height = max(1, BLOCK_BYTES // (width * weight.dtype.itemsize))
    for start in range(0, num_rows, height):
        block = _rows_on_rank_0(weight, start, min(start + height, num_rows))
        if block is not None:
            yield block


def _rows_on_rank_0(weight: Tensor, start: int, stop: int) -> Tensor | None:
    """Return rows start to stop of a table on rank 0; None on other ranks."""
    rank = dist.get_rank()
    if not isinstance(weight, ShardedTensor):
        return weight.detach()[start:stop].cpu().float() if rank == 0 else None
    block = torch.empty((stop - start, weight.size(1)), dtype=weight.dtype) if rank == 0 else None
    local = dict(local_shards(weight))
    # All processes go through the shards in one order, so that each send meets its receive.
    for shard in weight.metadata().shards_metadata:
        row, column = shard.shard_offsets
        first, last = max(start, row), min(stop, row + shard.shard_sizes[0])
        if first >= last:
            continue
        owner = shard.placement.rank()  # type: ignore[union-attr]
        if rank == owner:
            piece = local[row, column].detach()[first - row : last - row].cpu().contiguous()
            if block is None:
                dist.send(piece, dst=0)
        elif block is not None:
            piece = torch.empty((last - first, shard.shard_sizes[1]), dtype=weight.dtype)
            dist.recv(piece, src=owner)
        if block is not None:
            block[first - start : last - start, column : column + shard.shard_sizes[1]] = piece
    return None if block is None else block.float()
