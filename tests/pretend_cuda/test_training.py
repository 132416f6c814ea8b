"""Training on pretended GPUs gives the CPU's bits: digests of all parameters and losses, and the evaluation.

Before parameters were digested by blocks of rows (2ee2895) each of these runs ended without a summary.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import command, differing, losses, of_run, same, summary, train, train_several

DIM_16 = ["model.embedding_dim=16", "model.dense_arch=[32,16]", "model.over_arch=[32,1]"]
SMALL_DCN = ["model=dlrm_dcn", *DIM_16, "model.dcn_low_rank_dim=16"]
SMALL_PROJECTION = ["model=dlrm_projection", *DIM_16, *(f"model.projection_branch{n}=[32,64]" for n in (1, 2))]
REGULARISED = ["model.batch_norm=true", "model.dropout=0.3", "optimizer=adam", "optimizer.sparse_weight_decay=0.01"]
REGULARISED += ["optimizer.max_grad_norm=1", "optimizer.clip_tables=true", "optimizer.weight_decay=0.01"]
REGULARISED += ["sharding.types=data_parallel"]
LAYOUTS = ("row_wise", "column_wise", "table_row_wise", "grid_shard", "auto")
BAGS = "bags looked up id by id, and weighted"
CASES = {
    **{kind: [f"sharding.types={kind}"] for kind in LAYOUTS},
    "cat": ["model.interaction=cat"],
    "dcn": SMALL_DCN,
    "projection": SMALL_PROJECTION,
    "bf16": ["runtime.precision=bf16", "model.interaction=cat"],
    "fp16 tables": ["model.tables.storage=fp16"],
    "quotients and remainders": [
        "+model.tables.overrides.cat_2.kind=qr",
        "+model.tables.overrides.cat_2.qr_collisions=3",
    ],
    "compressed exchange": ["sharding.types=row_wise", "sharding.qcomm.forward=fp16", "sharding.qcomm.backward=bf16"],
    "pipeline": ["sharding.types=row_wise", "train.pipeline=sparse_dist", "train.eval_every_steps=5"],
    "profiler": ["runtime.profile_steps=[3,4]"],
    "skipped steps": ["train.on_nan=skip"],
    "regularised": REGULARISED,
    BAGS: [
        "+model.tables.overrides.tags.kind=qr",
        "+model.tables.overrides.tags.qr_collisions=3",
        "+model.tables.overrides.genres.row_weights=learned",
    ],
}
ON_TWO = (*LAYOUTS, "compressed exchange", "pipeline", "bf16", "skipped steps", "regularised", BAGS)


@pytest.mark.medium
def test_one_process_trains_as_on_the_cpu(runs: Path) -> None:
    assert json.loads((runs / "cuda/run/manifest.json").read_text())["platform"] == "cuda"
    assert same(summary(runs / "cuda"), summary(runs / "cpu"))


@pytest.mark.slow("processes")
def test_another_command_sees_the_same_model(machine: Machine, runs: Path, tmp_path: Path) -> None:
    for name in ("evaluate", "verify"):
        command(machine, name, tmp_path / name, f"run={runs}/cuda/run", *(["split=val"] if name == "evaluate" else []))
    evaluated, trained = json.loads((tmp_path / "evaluate/.stdout").read_text()), summary(runs / "cuda")["eval"]
    assert {key: evaluated[key] for key in ("auc", "logloss")} == {key: trained[key] for key in ("auc", "logloss")}
    assert "identical" in (tmp_path / "verify/.stderr").read_text() + (tmp_path / "verify/.stdout").read_text()


@pytest.mark.slow("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_bits(processes: int, machine: Machine, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {case: CASES[case] for case in CASES if (case in ON_TWO if processes == 2 else case not in LAYOUTS)}
    cases[BAGS] = [*CASES[BAGS], f"data.path={ragged}"]
    cpu, cuda = (
        train_several(machine, tmp_path / platform, dataset, platform, cases, processes) for platform in ("cpu", "cuda")
    )
    assert differing(cuda, cpu) == []


@pytest.mark.slow("processes")
@pytest.mark.parametrize("sharding", ["table_wise", "data_parallel"])
def test_two_gpus_have_the_bits_of_one(sharding: str, machine: Machine, dataset: Path, tmp_path: Path) -> None:
    """By train.deterministic=layout, with whole tables on one and with replicated ones."""
    keys = ["train.deterministic=layout", "train.micro_batch_size=16", f"sharding.types={sharding}"]
    one, two = (train(machine, tmp_path / str(n), dataset, "cuda", *keys, processes=n) for n in (1, 2))
    assert same(two, one)


@pytest.mark.slow("processes")
def test_several_gpus_train_by_a_plan_of_the_planner_and_replay_it(
    machine: Machine, dataset: Path, tmp_path: Path
) -> None:
    train(machine, tmp_path, dataset, "cuda", "sharding.types=null", processes=2)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert "data_parallel" in {table["type"] for table in manifest["plan"].values()}  # not table_wise, as on CPUs
    verified = json.loads(command(machine, "verify", tmp_path, f"run={tmp_path}/run", processes=2))
    assert verified["verdict"] == "identical"
    # it is the recorded plan that is replayed: another one is not chosen in its place
    for table in manifest["plan"].values():
        del table["shards"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    process = machine.run("app.verify", f"run={tmp_path}/run", cwd=tmp_path, processes=2)
    assert "key 'plan.t_cat_0.shards' is missing" in process.stderr


@pytest.mark.slow("processes")
def test_gpus_of_an_unknown_kind_are_placed_by_size(machine: Machine, dataset: Path, tmp_path: Path) -> None:
    memory = {"PRETEND_CUDA_MEMORY": str(7 << 30)}
    train(machine, tmp_path, dataset, "cuda", "sharding.types=null", processes=2, environment=memory)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert {table["type"] for table in manifest["plan"].values()} == {"table_wise"}
    assert "is not known; describe it in mine.yaml" in (tmp_path / ".stderr").read_text()


@pytest.mark.slow("processes")
def test_unified_memory(machine: Machine, dataset: Path, tmp_path: Path, runs: Path) -> None:
    unified = train(machine, tmp_path, dataset, "cuda", "sharding.kernels=fused_uvm")
    assert same(unified, summary(runs / "cpu"))


@pytest.mark.slow("processes")
def test_bf16_products_agree_within_rounding(machine: Machine, dataset: Path, tmp_path: Path) -> None:
    """On a GPU the dot interaction's backward is in bf16, too."""
    for platform in ("cpu", "cuda"):
        train(machine, tmp_path / platform, dataset, platform, "runtime.precision=bf16", "train.log_every_steps=1")
    np.testing.assert_allclose(losses(tmp_path / "cuda"), losses(tmp_path / "cpu"), rtol=1e-3)


WITHIN_ROUNDING = {
    "adagrad": ["optimizer=adagrad"],
    "rowwise_adagrad": ["optimizer=rowwise_adagrad"],
    "narrow tables": ["sharding.types=null", "model.embedding_dim=6", "model.dense_arch=[32,6]"],
    "logistic regression": ["sharding.types=null", "model=lr", "model.dense_arch=[]", "model.over_arch=[]"],
}


@pytest.mark.slow("processes")
def test_others_agree_within_rounding(machine: Machine, ragged: Path, tmp_path: Path) -> None:
    """Narrow tables are looked up by torch on a GPU alone."""
    for platform in ("cpu", "cuda"):
        cases = {name: [*keys, "train.log_every_steps=1"] for name, keys in WITHIN_ROUNDING.items()}
        train_several(machine, tmp_path / platform, ragged, platform, cases)
    for number, case in enumerate(WITHIN_ROUNDING):
        on_gpu, on_cpu = (losses(tmp_path / platform / str(number)) for platform in ("cuda", "cpu"))
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-5, err_msg=case)


@pytest.mark.slow("processes")
def test_checkpoints_come_in_blocks_from_each_process_own_gpu(machine: Machine, ragged: Path, tmp_path: Path) -> None:
    overrides = [*of_run(tmp_path, ragged, "cuda"), "optimizer=rowwise_adagrad", "train.max_steps=6"]
    process = machine.run("tests.pretend_cuda.staging", *overrides, cwd=tmp_path, processes=2)
    assert process.returncode == 0, process.stderr
    assert sorted(process.stdout.splitlines()) == ["saved with GPU 0", "saved with GPU 1"]
    resumed = train(machine, tmp_path, ragged, "cuda", "optimizer=rowwise_adagrad", processes=2)
    whole = train(machine, tmp_path / "whole", ragged, "cuda", "optimizer=rowwise_adagrad", processes=2)
    assert same(resumed, whole)


@pytest.mark.slow("processes")
def test_layouts_change_on_the_way(machine: Machine, ragged: Path, tmp_path: Path) -> None:
    """Two processes row-wise, one table-wise, two again; sums of fp32 in other orders differ by 1e-5 at most."""
    for steps, processes, kind in ((4, 2, "row_wise"), (8, 1, "table_wise"), (14, 2, "table_wise")):
        overrides = [f"sharding.types={kind}", f"train.max_steps={steps}", "train.log_every_steps=1"]
        train(machine, tmp_path / "moved", ragged, "cuda", *overrides, processes=processes)
    train(machine, tmp_path / "whole", ragged, "cuda", "train.log_every_steps=1")
    np.testing.assert_allclose(losses(tmp_path / "moved"), losses(tmp_path / "whole"), rtol=1e-5)


@pytest.mark.slow("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_while_saving_and_resumed(
    processes: int, machine: Machine, dataset: Path, runs: Path, tmp_path: Path
) -> None:
    """kill -9 in the second checkpoint, which is written while training goes on."""
    overrides, fault = [*of_run(tmp_path, dataset, "cuda"), "checkpoint.every_steps=5"], {"FAULT": "in the save:2"}
    killed = machine.run("app.train", *overrides, cwd=tmp_path, processes=processes, environment=fault)
    assert killed.returncode == -9, killed.stderr
    resumed = train(machine, tmp_path, dataset, "cuda", "checkpoint.every_steps=5", processes=processes)
    assert "resume" in (tmp_path / "run/metrics.jsonl").read_text()
    assert resumed["world_size"] == processes
    one = summary(runs / "cuda")
    assert same(resumed, one if processes == 1 else train(machine, tmp_path / "whole", dataset, "cuda", processes=2))
