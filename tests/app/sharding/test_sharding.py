"""However tables are spread, losses are those of one process; what is known of hardware, what a plan counts."""

import json
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
from app.config.sharding import COLUMN_TYPES, SHARDING_TYPES, Plan, QCommConfig, TopologyConfig
from app.model.embeddings import TableArch, make_sparse_arch
from app.runtime.platform import Runtime
from app.sharding import planner
from app.sharding.plan import codecs
from app.sharding.planner import Choice, Device, sharding_options
from app.training import session
from app.training.recorder import describe_tables
from common.documents import convert
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, built, composed
from tests.app.datasets import RAGGED_EMBEDDINGS, ragged_rows
from tests.app.group import run_group
from tests.error_lines import refused
from tests.once import made_once

STEPS = 20
CASES = [
    (algorithm, kind)
    for algorithm in ("sgd", "adagrad", "rowwise_adagrad")
    for kind in SHARDING_TYPES
    if not (algorithm == "rowwise_adagrad" and kind in COLUMN_TYPES)
]
ADAGRAD = [(algorithm, kind) for algorithm, kind in CASES if algorithm == "adagrad"]


def case(dataset: Path, algorithm: str, *overrides: str) -> list[str]:
    keys = ["run.name=x", f"data.path={dataset}", f"optimizer={algorithm}", f"train.max_steps={STEPS}"]
    return [*SMALL, *keys, *overrides]


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each optimizer's run of one process."""
    algorithms = ["sgd", "adagrad", "rowwise_adagrad"]

    def train(directory: Path) -> None:
        run_group([case(dataset, name) for name in algorithms], 1, directory / "results.json")

    results = json.loads((made_once(tmp_path_factory, "alone", train) / "results.json").read_text())
    return dict(zip(algorithms, results, strict=True))


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("world_size", "combinations"), [(2, CASES), (4, ADAGRAD)])
def test_every_type_trains_as_one_process(
    world_size: int, combinations: list[tuple[str, str]], alone: dict[str, Any], dataset: Path, tmp_path: Path
) -> None:
    """Two to a machine, so four are two machines. fp32 sums in another order differ by 1e-5 at the most."""
    cases = [case(dataset, algorithm, f"sharding.types={kind}") for algorithm, kind in combinations]
    of_tables = ["+sharding.tables.cat_2.types=[column_wise,row_wise]", "+sharding.tables.t_cat_1.types=table_row_wise"]
    mixed = case(dataset, "adagrad", "sharding.types=auto", *of_tables)
    *results, auto_result = run_group([*cases, mixed], world_size, tmp_path / "results.json", local_world_size=2)
    np.testing.assert_allclose(auto_result["losses"], alone["adagrad"]["losses"], rtol=1e-5)
    types = {name: table["type"] for name, table in auto_result["plan"]["tables"].items()}
    assert types["t_cat_1"] == "table_row_wise"
    assert types["t_cat_2"] in ("column_wise", "row_wise")
    for (algorithm, kind), result in zip(combinations, results, strict=True):
        assert {table["type"] for table in result["plan"]["tables"].values()} == {kind}
        assert result["initial_digest"] == alone[algorithm]["initial_digest"], (algorithm, kind)
        assert len(result["losses"]) == STEPS
        one = alone[algorithm]
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5, err_msg=f"{algorithm} {kind}")
        for name, total in one["sums"].items():
            assert result["sums"][name] == pytest.approx(total, abs=1e-3), (algorithm, kind, name)


def test_codecs_are_those_asked_for() -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    registry = codecs(QCommConfig("bf16", "fp16"))
    assert registry is not None
    for codec in registry.values():
        assert torch.equal(codec.forward.encode(values), values.bfloat16())
        assert torch.equal(codec.backward.encode(values), values.half())
    assert codecs(QCommConfig()) is None


@pytest.mark.slow("processes")
def test_more_processes_than_rows_train_as_one(ragged: Path, tmp_path: Path) -> None:
    """The third of three processes has no row of the remainders: 8 wide before others, 4 wide; or alone, by id."""
    in_rows = ["t_user_q", "t_user_r", "t_item", "t_tags_r"]
    tables = {"user": "{kind: qr, qr_operation: concat}", "item": "{kind: mixed_dimension, dim: 4}"}
    tables["tags"] = "{kind: qr}"
    config = [*SMALL, "run.name=x", f"data.path={ragged}", "train.max_steps=8", "train.global_batch_size=48"]
    config += ["optimizer=adagrad", *(f"+model.tables.overrides.{name}={keys}" for name, keys in tables.items())]
    config += [*(f"+sharding.tables.{table}.types=row_wise" for table in in_rows)]
    (alone,), (three,) = (run_group([config], size, tmp_path / f"{size}.json") for size in (1, 3))
    plan = convert(three["plan"], Plan)
    for table in ("t_user_r", "t_tags_r"):
        assert [shard.rows for shard in plan.tables[table].shards] == [2, 2, 0]
    np.testing.assert_allclose(three["losses"], alone["losses"], rtol=1e-5)
    for name, total in alone["sums"].items():
        assert three["sums"][name] == pytest.approx(total, abs=1e-3), name


# As torch reports them.
REPORTED = {
    "mi250x": Device("AMD Instinct MI250X", "gfx90a", 63.98),
    "mi300x": Device("AMD Instinct MI300X", "gfx942", 191.69),
    "mi350x": Device("AMD Instinct MI350X", "gfx950", 287.98),
    "mi355x": Device("AMD Instinct MI355X", "gfx950", 287.98),
    "a100_40": Device("NVIDIA A100-SXM4-40GB", "sm_80", 39.39),
    "a100_80": Device("NVIDIA A100-SXM4-80GB", "sm_80", 79.15),
    "h100": Device("NVIDIA H100 80GB HBM3", "sm_90", 79.11),
    "b300": Device("NVIDIA B300 SXM6 AC", "sm_103", 268.59),
    "gb300": Device("NVIDIA GB300", "sm_103", 278.0),
    "cpu": planner.probe("cpu"),
}
# Of a file that is new, what its own figures say.
DEVICES = {
    name: REPORTED.get(name) or Device(name, str(entry.architecture), entry.memory_gib or 0.0)
    for name, entry in planner.load_all().items()
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_known_by_architecture_and_memory(name: str) -> None:
    assert planner.identify(DEVICES[name], planner.load_all()).name == name


def test_an_unknown_device_is_described_as_the_error_says(tmp_path: Path) -> None:
    strange = Device("AMD Instinct MI300A", "gfx942", 127.5)
    with pytest.raises(UserError, match=r"AMD Instinct MI300A \(gfx942, 127.5 GiB\) is not known") as caught:
        planner.resolve(TopologyConfig(), lambda: strange, 4)
    assert "\n" not in str(caught.value)
    example = str(caught.value).split("one way: ")[1].split("; then")[0]
    path = tmp_path / "mine.yaml"
    path.write_text(example.replace("...", "100"))
    hardware = planner.resolve(TopologyConfig(file=str(path)), lambda: strange, 4)
    assert (hardware.name, hardware.memory_gib, hardware.inter_host_gb_per_s) == ("mine", 128, 100)
    for text, message in (
        (example.replace("...", "fast"), r"mine\.yaml: not a topology"),
        ("{name: mine, architecture: gfx942}", r"topology\.memory_gib=null: topology mine needs it"),
    ):
        path.write_text(text)
        refused(message, planner.resolve, TopologyConfig(file=str(path)), lambda: strange, 4)


def test_units_are_those_of_torchrec() -> None:
    h100 = planner.resolve(planner.load_all()["h100"], lambda: DEVICES["h100"], 8)
    theirs = planner.to_torchrec(replace(h100, nodes=2, devices_per_node=8))
    assert (theirs.hbm_mem_bw, theirs.devices[15].storage.hbm) == (3350e9 / 1000, 80 * 2**30)
    assert theirs.intra_host_bw == pytest.approx(0.8 * 450e9 / 1000)
    assert theirs.inter_host_bw == pytest.approx(0.8 * 50e9 / 1000)
    assert (theirs.world_size, theirs.local_world_size, theirs.compute_device) == (16, 8, "cuda")


ROWS = 64  # of a batch
STORAGES = {"fp32": SparseType.FP32, "fp16": SparseType.FP16}
FAST = [(OptimizerName.adagrad, "fp16"), (OptimizerName.adam, "fp32")]
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
    choices = {
        name: Choice(name, ((table.type, table.kernel),), min(shard.columns for shard in table.shards), None)
        for name, table in plan.tables.items()
    }
    options = sharding_options(replace(config, topology=hardware), arch, choices, bag_sizes)
    return {name: [shard.storage for shard in option.shards] for name, (option,) in options.items()}


def live_bytes(this: session.Session) -> int:
    """Of tables, their optimizers' state, their gradients, pooled vectors and ids as FBGEMM has them (int64)."""
    (batch,) = list(this.split("train").train_batches(ROWS, 0, 0, 0))[:1]
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
        if name.algorithm.fused_on_cpu or storage == "fp32"
    ],  # torch updates no others on CPUs
)
def test_a_plan_counts_what_a_live_model_takes(
    runtime: Runtime, dataset: Path, optimizer: OptimizerName, storage: Storage, sizes: str
) -> None:
    overrides = [f"optimizer={optimizer.value}", f"data.multi_hot.sizes={sizes}", f"train.global_batch_size={ROWS}"]
    overrides += [f"model.tables.storage={storage}", "topology=cpu"]
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
        pytest.param(name, storage, marks=[] if (name.value, storage) == ("rowwise_adam", "fp16") else slow)
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
    keys += [f"model.tables.storage={storage}", f"train.global_batch_size={ROWS}", "sharding.types=table_wise"]
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
    rows = ragged_rows("train", 2_000)
    means = {name: float(np.mean([len(row[name]) for row in rows])) for name in RAGGED_EMBEDDINGS}
    assert means["tags"] > 2 == means["genres"]
    this = built(runtime, ragged, "optimizer=sgd", "model.embedding_dim=16")
    planned = planner.bag_sizes_of(this.config, ragged, load_manifest(ragged))
    assert planned == pytest.approx(means)
    tables = describe_tables(this.model.module.sparse_arch, planned)
    described = {name: table.ids_per_sample for name, table in tables.items()}
    assert described == pytest.approx({f"t_{name}": mean for name, mean in means.items()})
