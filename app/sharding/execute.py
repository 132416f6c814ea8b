"""A plan carried out: TorchRec's DistributedModelParallel."""

from typing import Any

import torch
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.types import (
    CommOp,
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingPlan,
)

from app.config.sharding import KERNELS, SHARDING_TYPES, CommPrecision, QCommConfig, kernels_of
from app.sharding.collections import collections
from app.sharding.empty_shards import count_empty_shards
from app.sharding.plan import BY_ID_TYPES, Plan
from common.streams import without_native_stdout


class EverySharder(EmbeddingBagCollectionSharder):
    """TorchRec hides row-wise kinds on CPU, though they run there on gloo, and offers kernels that nobody asked for."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(SHARDING_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


class EveryByIdSharder(EmbeddingCollectionSharder):
    """The same for tables that are looked up id by id."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(BY_ID_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


def make_sharders(
    fused_params: dict[str, Any], registry: dict[str, QuantizedCommCodecs] | None
) -> list[ModuleSharder[nn.Module]]:
    """One for each kind of collection of tables."""
    return [
        kind(fused_params=fused_params, qcomm_codecs_registry=registry) for kind in (EverySharder, EveryByIdSharder)
    ]


def distribute(
    model: nn.Module, plan: Plan, fused_params: dict[str, Any], qcomm: QCommConfig, device: torch.device
) -> DistributedModelParallel:
    """Shard the model's tables over the process group as planned and replicate the rest; a collective call."""
    tables = plan.to_torchrec(device.type)
    parts = {
        path: EmbeddingModuleShardingPlan({table.name: tables[table.name] for table in part})
        for path, part in collections(model).items()
    }
    with without_native_stdout():  # some kinds of sharding make process groups
        sharded = DistributedModelParallel(
            model,
            device=device,
            plan=ShardingPlan(plan=parts),
            sharders=make_sharders(fused_params, codecs(qcomm)),
            data_parallel_wrapper=_ReplicateAmongMany(),
        )
    for module in sharded.modules():
        if isinstance(module, ShardedEmbeddingBagCollection | ShardedEmbeddingCollection):
            for lookup in module._lookups:
                count_empty_shards(lookup)
    return sharded


def codecs(qcomm: QCommConfig) -> dict[str, QuantizedCommCodecs] | None:
    """What squeezes embeddings and their gradients for the wire.

    Put together here, since TorchRec's own function makes fp16 of bf16 on CPU: gloo carries bf16 today.
    """
    if (qcomm.forward, qcomm.backward) == (CommPrecision.fp32, CommPrecision.fp32):
        return None
    config = QCommsConfig(CommType(qcomm.forward.value), CommType(qcomm.backward.value))
    return {operation.name: get_qcomm_codecs(config) for operation in CommOp}


def plan_summary(model: DistributedModelParallel) -> dict[str, dict[str, Any]]:
    """What lies where: sharding type, kernel and ranks of each table."""
    return {
        name: {
            "type": sharding.sharding_type,
            "kernel": sharding.compute_kernel,
            "ranks": list(sharding.ranks or []),
        }
        for part in model.plan.plan.values()
        for name, sharding in part.items()
    }


class _ReplicateAmongMany(DefaultDataParallelWrapper):
    """A process alone has nobody to average gradients with: DDP would only copy them to and fro."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        if env.world_size > 1:
            super().wrap(dmp, env, device)
        else:
            dmp._dmp_wrapped_module = dmp._dmp_wrapped_module.to(device)
