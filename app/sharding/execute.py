"""A plan carried out: TorchRec's DistributedModelParallel."""

from typing import Any

import torch
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.types import (
    CommOp,
    EmbeddingModuleShardingPlan,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingPlan,
)

from app.config.sharding import KERNELS, SHARDING_TYPES, CommPrecision, QCommConfig, kernels_of
from app.sharding.plan import Plan


class EverySharder(EmbeddingBagCollectionSharder):
    """TorchRec hides row-wise kinds on CPU, though they run there on gloo, and offers kernels that nobody asked for."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(SHARDING_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


def distribute(
    model: nn.Module, plan: Plan, fused_params: dict[str, Any], qcomm: QCommConfig, device: torch.device
) -> DistributedModelParallel:
    """Shard `model.sparse_arch` over the process group as planned and replicate the rest; a collective call."""
    return DistributedModelParallel(
        model,
        device=device,
        plan=ShardingPlan(plan={"sparse_arch": plan.to_torchrec(device.type)}),
        sharders=[EverySharder(fused_params=fused_params, qcomm_codecs_registry=codecs(qcomm))],
        data_parallel_wrapper=_ReplicateAmongMany(),
    )


def codecs(qcomm: QCommConfig) -> dict[str, QuantizedCommCodecs] | None:
    """What squeezes embeddings and their gradients for the wire.

    Put together here, since TorchRec's own function makes fp16 of bf16 on CPU: gloo carries bf16 today.
    """
    if (qcomm.forward, qcomm.backward) == (CommPrecision.fp32, CommPrecision.fp32):
        return None
    config = QCommsConfig(CommType(qcomm.forward.value), CommType(qcomm.backward.value))
    operations = (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER)
    return {operation.name: get_qcomm_codecs(config) for operation in operations}


def plan_summary(model: DistributedModelParallel) -> dict[str, dict[str, Any]]:
    """What lies where: sharding type, kernel and ranks of each table."""
    tables: EmbeddingModuleShardingPlan = model.plan.plan["sparse_arch"]
    return {
        name: {
            "type": sharding.sharding_type,
            "kernel": sharding.compute_kernel,
            "ranks": list(sharding.ranks or []),
        }
        for name, sharding in tables.items()
    }


class _ReplicateAmongMany(DefaultDataParallelWrapper):
    """A process alone has nobody to average gradients with: DDP would only copy them to and fro."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        if env.world_size > 1:
            super().wrap(dmp, env, device)
        else:
            dmp._dmp_wrapped_module = dmp._dmp_wrapped_module.to(device)
