"""The bytes that a plan counts, against those that live modules take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torchrec.distributed.planner.types import Storage as PlannedStorage

from app.config.app_config import AppConfig
from app.config.kinds import OptimizerName
from app.config.model import Storage, published_tables
from app.config.sharding import TopologyConfig
from app.model.embeddings import TableArch, make_sparse_arch
from app.runtime.platform import Runtime
from app.sharding import planner
from app.sharding.plan import Plan
from app.sharding.planner import Choice, sharding_options
from app.training import session
from app.training.recorder import describe_tables
from common.errors import UserError
from data_prep.dataset.format import load_manifest, shard_path
from tests.app.conftest import built, composed
from tests.app.datasets import RAGGED_EMBEDDINGS, ragged_rows, write_ragged_dataset

ROWS = 64  # of a batch
STORAGES = {Storage.fp32: SparseType.FP32, Storage.fp16: SparseType.FP16}
FAST = [(OptimizerName.adagrad, Storage.fp16), (OptimizerName.adam, Storage.fp32)]
slow = pytest.mark.slow


def tensor_bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def resolved(name: str, devices: int) -> TopologyConfig:
    topology_config = replace(planner.load_all()[name], nodes=1, devices_per_node=devices)
    return planner.resolve(topology_config, lambda: planner.probe("cpu"), devices)


def planned_storage(
    config: AppConfig, hardware: TopologyConfig, arch: TableArch, plan: Plan, bag_sizes: dict[str, float]
) -> dict[str, list[PlannedStorage]]:
    """The memory on device and host that the planner counts for each table's shards."""
    workload = planner.workload(config.train, config.optimizer, config.sharding, hardware, arch, bag_sizes)
    choices = {
        name: Choice(name, ((table.type, table.kernel),), min(shard.columns for shard in table.shards), None)
        for name, table in plan.tables.items()
    }
    options = sharding_options(arch, choices, workload)
    return {name: [shard.storage for shard in option.shards] for name, (option,) in options.items()}


def live_bytes(this: session.Session) -> int:
    """Of tables, their optimizers' state, their gradients, pooled vectors and ids as FBGEMM has them (int64)."""
    (batch,) = list(this.predictor.split("train").train_batches(ROWS, 0, 0, 0))[:1]
    this.optimizer.zero_grad()
    pooled = this.model.module.sparse_arch.bags(batch.sparse_features).values()
    pooled.sum().backward()
    this.optimizer.step()
    total = pooled.nbytes + batch.sparse_features.values().numel() * 8
    for module in (part for lookup in this.model.module.sparse_arch.bags._lookups for part in lookup.modules()):
        if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen):
            total += tensor_bytes(module.split_embedding_weights())
            total += tensor_bytes(state for table in module.split_optimizer_states() for state in table)
    states = {id(weight): state for _, keyed in this.optimizer.optimizers for weight, state in keyed.state.items()}
    for name, weight in this.model.named_parameters():
        if ".bags." in name and isinstance(weight, torch.nn.Parameter) and weight.grad is not None:
            total += tensor_bytes([weight, weight.grad])
            total += tensor_bytes(state for state in states[id(weight)].values() if state.numel() > 1)
    return total


@pytest.mark.parametrize("sizes", ["[3,1,2,1]", pytest.param("null", marks=slow)])
@pytest.mark.parametrize(
    ("optimizer", "storage"),
    [
        pytest.param(name, storage, marks=[] if (name, storage) in FAST else slow)
        for name in OptimizerName
        for storage in STORAGES
        if name.algorithm.fused_on_cpu or storage is Storage.fp32
    ],  # torch updates no others on CPUs
)
def test_a_plan_counts_what_a_live_model_takes(
    runtime: Runtime, dataset: Path, optimizer: OptimizerName, storage: Storage, sizes: str
) -> None:
    overrides = [f"optimizer={optimizer.value}", f"data.multi_hot.sizes={sizes}", f"train.global_batch_size={ROWS}"]
    overrides += [f"model.tables.storage={storage.value}", "topology=cpu"]
    overrides += [] if optimizer.algorithm.fused_on_cpu else ["sharding=data_parallel"]
    this = built(runtime, dataset, *overrides)
    config, manifest = this.config, load_manifest(dataset)
    bag_sizes = planner.bag_sizes_of(config, dataset, manifest)
    multi_hot = planner.multi_hot_features(config.data.multi_hot, manifest)
    arch = make_sparse_arch(config.model, manifest.num_embeddings, multi_hot)
    planned = planned_storage(config, resolved("cpu", 1), arch, this.plan, bag_sizes)
    assert sum(part.hbm + part.ddr for parts in planned.values() for part in parts) == live_bytes(this)


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm"])
@pytest.mark.parametrize(
    ("name", "storage"),
    [
        pytest.param(name, storage, marks=[] if (name.value, storage.value) == ("rowwise_adam", "fp16") else slow)
        for name in OptimizerName
        if name.algorithm.fbgemm
        for storage in STORAGES
    ],
)
def test_a_gpus_plan_counts_what_fbgemm_allocates(name: OptimizerName, storage: Storage, kernel: str) -> None:
    """FBGEMM's own module for GPUs, on the meta device, which needs none; bags of three ids."""
    rows, dim, ids = 1_000, 16, 3
    place = EmbeddingLocation.DEVICE if kernel == "fused" else EmbeddingLocation.MANAGED
    allocated = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, place, ComputeDevice.CUDA)],
        optimizer=EmbOptimType[str(name.algorithm.fbgemm)],
        weights_precision=STORAGES[storage],
        device=torch.device("meta"),
    )
    tensors = dict([*allocated.named_parameters(), *allocated.named_buffers()])
    table_tensors = {key: tensor for key, tensor in tensors.items() if key.startswith(("weights_", "momentum"))}
    device, host = (
        tensor_bytes(tensor for key, tensor in table_tensors.items() if key.endswith(end) and tensor.numel() > 1)
        for end in ("_dev", "_uvm")
    )
    keys = [f"model.embedding_dim={dim}", f"model.dense_arch=[{dim}]", "model.over_arch=[1]", f"optimizer={name.value}"]
    keys += [f"model.tables.storage={storage.value}", f"train.global_batch_size={ROWS}", "sharding.types=table_wise"]
    config = replace(composed(*keys, f"sharding.kernels=[{kernel}]"), topology=resolved("h100", 1))
    arch, bag_sizes = make_sparse_arch(config.model, {"cat_0": rows}, ["cat_0"]), {"cat_0": float(ids)}
    plan = planner.decide(config, torch.device("cuda"), arch, bag_sizes)
    (part,) = planned_storage(config, config.topology, arch, plan, bag_sizes)["t_cat_0"]
    assert part.hbm == device + ROWS * (ids * 8 + dim * 4)
    assert part.ddr == host


def test_tables_that_do_not_fit_are_counted_as_stored() -> None:
    """MLPerf v2's 26,135,627,264 parameters in fp16 take 48.7 GiB, and Adagrad's fp32 state 97.4."""
    keys = ["model.embedding_dim=128", "model.tables.storage=fp16", "optimizer=adagrad", "sharding.types=auto"]
    config = replace(composed(*keys, "train.global_batch_size=8192"), topology=resolved("h100", 2))
    rows = published_tables("mlperf_v2").rows
    arch = make_sparse_arch(config.model, rows, [])
    with pytest.raises(UserError, match=r"26 tables of 48\.7 GiB and 97\.4 GiB of adagrad's state on 2 devices of 80"):
        planner.decide(config, torch.device("cuda"), arch, dict.fromkeys(rows, 1.0))


def test_a_gpu_refuses_narrow_tables_of_several_widths() -> None:
    """The widths are 4, of a mixed-dimension table, and 10; torch looks up tables of one width."""
    keys = ["model.embedding_dim=10", "model.dense_arch=[8,10]", "model.tables.alpha=0.6"]
    config = composed(*keys, "+model.tables.overrides.cat_0.kind=mixed_dimension")
    rows = {"cat_0": 60, "cat_1": 9}
    arch = make_sparse_arch(config.model, rows, [])
    assert [table.embedding_dim for table in arch.tables] == [4, 10]
    plan = planner.decide(config, torch.device("cpu"), arch, dict.fromkeys(rows, 1.0))
    assert {table.type for table in plan.tables.values()} == {"data_parallel"}
    with pytest.raises(UserError, match="have widths of 4, 10, which a GPU can look up if all are equal or multiples"):
        planner.decide(config, torch.device("cuda"), arch, dict.fromkeys(rows, 1.0))


@pytest.mark.medium
def test_ids_a_bag_are_the_means_of_the_shards(runtime: Runtime, ragged: Path) -> None:
    """In the manifest and in plans; the dataset has shards of several sizes."""
    rows = ragged_rows("train", 2_000)
    means = {name: float(np.mean([len(row[name]) for row in rows])) for name in RAGGED_EMBEDDINGS}
    assert means["tags"] > 2 == means["genres"]
    this = built(runtime, ragged, "optimizer=sgd", "model.embedding_dim=16")
    config, manifest = this.config, load_manifest(ragged)
    planned = planner.bag_sizes_of(config, ragged, manifest)
    assert planned == pytest.approx(means)
    tables = describe_tables(this.model.module.sparse_arch, planned)
    described = {name: table.ids_per_sample for name, table in tables.items()}
    assert described == pytest.approx({f"t_{name}": mean for name, mean in means.items()})
    # A mean of one id a bag would be all that is known without them.
    multi_hot = planner.multi_hot_features(config.data.multi_hot, manifest)
    arch = make_sparse_arch(config.model, manifest.num_embeddings, multi_hot)
    storage = planned_storage(config, resolved("cpu", 1), arch, this.plan, planned)
    batch = config.train.global_batch_size
    for name, ids in means.items():
        (part,) = storage[f"t_{name}"]
        vectors = batch * min(1.0, ids) * 16 * 4
        table_bytes = RAGGED_EMBEDDINGS[name] * 16 * 4
        assert part.hbm + part.ddr == pytest.approx(table_bytes + vectors + batch * ids * 8, abs=2)


def test_empty_bags_alone_can_be_planned(tmp_path: Path, runtime: Runtime) -> None:
    manifest = write_ragged_dataset(tmp_path, {"train": 10})
    path = shard_path(tmp_path, "train", "00000", "offsets")
    np.save(path, np.where(np.arange(21) > 9, np.load(path) - np.load(path)[10], 0))
    this = built(runtime, tmp_path, "topology=cpu", "sharding.types=[table_wise,row_wise]")
    assert planner.bag_sizes_of(this.config, tmp_path, manifest)["tags"] == 0
    assert set(this.plan.tables) == {f"t_{key}" for key in RAGGED_EMBEDDINGS}
