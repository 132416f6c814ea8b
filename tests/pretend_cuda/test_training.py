"""On pretended GPUs, training gives the CPU's bits: digests of all parameters and losses, and the evaluation.

A step whose dense layers are graphs (runtime.compile=step) has the bits of one whose kernels are sent one by one.
"""

import json
from pathlib import Path

import pytest

from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.once import made_once
from tests.pretend_cuda import device
from tests.pretend_cuda.runs import command, differing, run, same, summary, train, train_several

pytestmark = pytest.mark.slow("processes")

ROWS = {"train": 1_000, "val": 200, "test": 20}


DIM_16 = ["model.embedding_dim=16", "model.dense_arch=[32,16]", "model.over_arch=[32,1]"]
SMALL_DCN = ["model=dlrm_dcn", *DIM_16, "model.dcn_low_rank_dim=16"]
SMALL_PROJECTION = ["model=dlrm_projection", *DIM_16, *(f"model.projection_branch{n}=[32,64]" for n in (1, 2))]
REGULARISED = ["model.batch_norm=true", "model.dropout=0.3", "optimizer=adam", "optimizer.sparse_weight_decay=0.01"]
REGULARISED += ["optimizer.max_grad_norm=1", "optimizer.clip_tables=true", "optimizer.weight_decay=0.01"]
REGULARISED += ["sharding.types=data_parallel"]
QR_BAGS = ["+model.tables.overrides.tags.kind=qr", "+model.tables.overrides.tags.qr_collisions=3"]
QR_BAGS += ["+model.tables.overrides.genres.row_weights=learned"]
EXCHANGE = ["sharding.types=row_wise", "sharding.qcomm.forward=fp16", "sharding.qcomm.backward=bf16"]
PIPELINE = ["sharding.types=row_wise", "train.pipeline=sparse_dist", "train.eval_every_steps=5"]
ALONE = {
    "plain": [],
    "dcn": SMALL_DCN,
    "projection": SMALL_PROJECTION,
    "bf16": ["runtime.precision=bf16", "model.interaction=cat"],
    "fp16 tables": ["model.tables.storage=fp16"],
    "bags": QR_BAGS,
}
ON_TWO = {kind: [f"sharding.types={kind}"] for kind in ("column_wise", "table_row_wise", "grid_shard")}
ON_TWO |= {"exchange": EXCHANGE, "pipeline": PIPELINE, "skipped": ["train.on_nan=skip"], "regularised": REGULARISED}
GRAPHS_ALONE = {**ALONE, "regularised": REGULARISED, "adagrad": ["optimizer=adagrad", "optimizer.max_grad_norm=0.01"]}


@pytest.mark.parametrize("processes", [1, 2])
def test_bits(processes: int, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {"bags": [*QR_BAGS, f"data.path={ragged}"]}
    cases = {**(ALONE if processes == 1 else ON_TWO), **cases}
    cpu, cuda = (train_several(tmp_path / on, dataset, on, cases, processes=processes) for on in ("cpu", "cuda"))
    assert differing(cuda, cpu) == []


def test_two_gpus_have_the_bits_of_one(dataset: Path, tmp_path: Path) -> None:
    """By train.deterministic=layout."""
    keys = ["train.deterministic=layout", "train.micro_batch_size=16"]
    one, two = (train(tmp_path / str(n), dataset, "cuda", *keys, processes=n) for n in (1, 2))
    assert same(two, one)


def test_gpus_train_by_a_plan_of_the_planner_and_replay_it(dataset: Path, tmp_path: Path) -> None:
    train(tmp_path, dataset, "cuda", "sharding.types=null", processes=2)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert "data_parallel" in {table["type"] for table in manifest["plan"].values()}  # not table_wise, as on CPUs
    verified = json.loads(command("verify", tmp_path, f"run={tmp_path}/run", processes=2))
    assert verified["verdict"] == "identical"
    # it is the recorded plan that is replayed: another one is not chosen in its place
    for table in manifest["plan"].values():
        del table["shards"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    process = run("app.verify", f"run={tmp_path}/run", cwd=tmp_path, processes=2)
    assert "key 'plan.t_cat_0.shards' is missing" in process.stderr


def test_a_resumed_run_of_graphs_ends_as_the_whole_and_is_scored_on_a_cpu(dataset: Path, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", dataset, "cuda", "sharding.kernels=fused_uvm")
    for steps in (6, 14):
        train(tmp_path, dataset, "cuda", "runtime.compile=step", f"train.max_steps={steps}")
    assert same(summary(tmp_path), whole)
    words = [f"run={tmp_path}/run", "split=val", "runtime.platform=cpu"]
    assert json.loads(command("evaluate", tmp_path, *words))["auc"] == whole["eval"]["auc"]


WITHOUT_WAITS = {
    "bags": [],
    "dcn": ["model=dlrm_dcn", *DIM_16],
    "bf16": ["runtime.precision=bf16"],
    "row-wise Adagrad": ["optimizer=rowwise_adagrad"],
    "graphs": ["runtime.compile=step", "optimizer=adagrad"],
}


def test_no_step_waits(dataset: Path, ragged: Path, tmp_path: Path) -> None:
    """See README.md for what a wait is."""
    cases = {
        case: [*keys, "train.log_every_steps=50", f"data.path={ragged if case == 'bags' else dataset}"]
        for case, keys in WITHOUT_WAITS.items()
    }
    counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/counts"}
    train_several(tmp_path / "runs", dataset, "cuda", cases, environment=counts)
    steps = [json.loads(line) for line in (tmp_path / "counts.0").read_text(encoding="utf-8").splitlines()]
    for number, case in enumerate(WITHOUT_WAITS):
        waits = [step["waits"] for step in steps[14 * number : 14 * (number + 1)]]
        after_warm_up = {"aten::copy_": 1, "synchronize": 1}  # step 10
        assert waits[1:] == [{}] * 9 + [after_warm_up] + [{}] * 3, case
    assert steps[-12]["sent"]["graph"] == 4  # two each way; lookup, loss and optimizer stay outside them
    assert sum(steps[-12]["sent"].values()) == 37


GRAPHS_ON_TWO = {name: ON_TWO[name] for name in ("exchange", "pipeline", "skipped")}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One id a bag."""
    if reason := device.why_not():
        pytest.skip(reason)
    made_once(tmp_path_factory, "pretend_cuda_library", lambda directory: device.library())
    return made_once(tmp_path_factory, "pretend_cuda_dataset", lambda root: write_dataset(root, ROWS))


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags of none to many ids."""
    return made_once(tmp_path_factory, "pretend_cuda_ragged", lambda root: write_ragged_dataset(root, ROWS))


@pytest.mark.parametrize("processes", [1, 2])
def test_bits_of_graphs(processes: int, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = GRAPHS_ALONE if processes == 1 else GRAPHS_ON_TWO
    cases = {name: [*keys, *[f"data.path={ragged}"] * (name == "bags")] for name, keys in cases.items()}
    eager, graphs = (
        train_several(tmp_path / form, dataset, "cuda", of_form, processes=processes)
        for form in ("none", "step")
        for of_form in [{name: [*keys, f"runtime.compile={form}"] for name, keys in cases.items()}]
    )
    assert differing(graphs, eager) == []
