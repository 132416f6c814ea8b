"""On pretended GPUs, training gives the CPU's bits: digests of all parameters and losses, and the evaluation.

A step whose dense layers are graphs (runtime.compile=step) has the bits of one whose kernels are sent one by one.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data_prep import oracle
from tests.error_lines import error_line
from tests.pretend_cuda.runs import (
    TINY,
    command,
    differing,
    losses,
    of_run,
    read_steps,
    run,
    same,
    summary,
    train,
    train_several,
)

pytestmark = pytest.mark.usefixtures("machine")


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
def test_the_device_refuses_what_a_gpu_refuses(runs: Path) -> None:
    outcomes = json.loads((runs / "refusals/.stdout").read_text())
    assert {key: error for key, error in outcomes["mixes"].items() if "on the same device" not in error} == {}
    assert [key for key, error in outcomes["others"].items() if not error] == []
    assert {key: error for key, error in outcomes["allowed"].items() if error} == {}


@pytest.mark.medium
def test_one_process_trains_as_on_the_cpu(runs: Path) -> None:
    assert json.loads((runs / "cuda/run/manifest.json").read_text())["platform"] == "cuda"
    assert same(summary(runs / "cuda"), summary(runs / "cpu"))


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("processes", "tolerance"), [(1, 0), (2, 1e-5)])
def test_evaluate_sees_the_same_model(processes: int, tolerance: float, runs: Path, tmp_path: Path) -> None:
    words = [f"run={runs}/cuda/run", "split=val", f"out={tmp_path}/out.json"]
    command("evaluate", tmp_path, *words, processes=processes)
    evaluated, trained = json.loads((tmp_path / "out.json").read_text()), summary(runs / "cuda")["eval"]
    for figure in ("auc", "logloss"):
        assert evaluated[figure] == pytest.approx(trained[figure], rel=tolerance, abs=0)


@pytest.mark.slow("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_bits(processes: int, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {case: CASES[case] for case in CASES if (case in ON_TWO if processes == 2 else case not in LAYOUTS)}
    cases[BAGS] = [*CASES[BAGS], f"data.path={ragged}"]
    cpu, cuda = (
        train_several(tmp_path / platform, dataset, platform, cases, processes=processes)
        for platform in ("cpu", "cuda")
    )
    assert differing(cuda, cpu) == []


@pytest.mark.slow("processes")
@pytest.mark.parametrize("sharding", ["table_wise", "data_parallel"])
def test_two_gpus_have_the_bits_of_one(sharding: str, dataset: Path, tmp_path: Path) -> None:
    """By train.deterministic=layout, with whole tables on one and with replicated ones."""
    keys = ["train.deterministic=layout", "train.micro_batch_size=16", f"sharding.types={sharding}"]
    one, two = (train(tmp_path / str(n), dataset, "cuda", *keys, processes=n) for n in (1, 2))
    assert same(two, one)


@pytest.mark.slow("processes")
def test_several_gpus_train_by_a_plan_of_the_planner_and_replay_it(dataset: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow("processes")
def test_gpus_of_an_unknown_kind_are_placed_by_size(dataset: Path, tmp_path: Path) -> None:
    memory = {"PRETEND_CUDA_MEMORY": str(7 << 30)}
    train(tmp_path, dataset, "cuda", "sharding.types=null", processes=2, environment=memory)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert {table["type"] for table in manifest["plan"].values()} == {"table_wise"}
    assert "is not known; describe it in mine.yaml" in (tmp_path / ".stderr").read_text()


@pytest.mark.slow("processes")
def test_unified_memory(dataset: Path, tmp_path: Path, runs: Path) -> None:
    unified = train(tmp_path, dataset, "cuda", "sharding.kernels=fused_uvm")
    assert same(unified, summary(runs / "cpu"))


@pytest.mark.slow("processes")
def test_bf16_products_agree_within_rounding(dataset: Path, tmp_path: Path) -> None:
    """On a GPU the dot interaction's backward is in bf16, too."""
    for platform in ("cpu", "cuda"):
        train(tmp_path / platform, dataset, platform, "runtime.precision=bf16", "train.log_every_steps=1")
    np.testing.assert_allclose(losses(tmp_path / "cuda"), losses(tmp_path / "cpu"), rtol=1e-3)


WITHIN_ROUNDING = {
    "adagrad": ["optimizer=adagrad"],
    "rowwise_adagrad": ["optimizer=rowwise_adagrad"],
    "narrow tables": ["sharding.types=null", "model.embedding_dim=6", "model.dense_arch=[32,6]"],
    "logistic regression": ["sharding.types=null", "model=lr", "model.dense_arch=[]", "model.over_arch=[]"],
}


@pytest.mark.slow("processes")
def test_others_agree_within_rounding(ragged: Path, tmp_path: Path) -> None:
    """Narrow tables are looked up by torch on a GPU alone."""
    for platform in ("cpu", "cuda"):
        cases = {name: [*keys, "train.log_every_steps=1"] for name, keys in WITHIN_ROUNDING.items()}
        train_several(tmp_path / platform, ragged, platform, cases)
    for number, case in enumerate(WITHIN_ROUNDING):
        on_gpu, on_cpu = (losses(tmp_path / platform / str(number)) for platform in ("cuda", "cpu"))
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-5, err_msg=case)


@pytest.mark.slow("processes")
def test_checkpoints_come_in_blocks_from_each_process_own_gpu(ragged: Path, tmp_path: Path) -> None:
    overrides = [*of_run(tmp_path, ragged, "cuda"), "optimizer=rowwise_adagrad", "train.max_steps=6"]
    process = run("tests.pretend_cuda.programs", "staging", *overrides, cwd=tmp_path, processes=2)
    assert process.returncode == 0, process.stderr
    assert sorted(process.stdout.splitlines()) == ["saved with GPU 0", "saved with GPU 1"]
    resumed = train(tmp_path, ragged, "cuda", "optimizer=rowwise_adagrad", processes=2)
    whole = train(tmp_path / "whole", ragged, "cuda", "optimizer=rowwise_adagrad", processes=2)
    assert same(resumed, whole)


@pytest.mark.slow("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_while_saving_and_resumed(processes: int, dataset: Path, runs: Path, tmp_path: Path) -> None:
    """kill -9 in the second checkpoint, which is written while training goes on."""
    overrides, fault = [*of_run(tmp_path, dataset, "cuda"), "checkpoint.every_steps=5"], {"FAULT": "in the save:2"}
    killed = run("app.train", *overrides, cwd=tmp_path, processes=processes, environment=fault)
    assert killed.returncode == -9, killed.stderr
    resumed = train(tmp_path, dataset, "cuda", "checkpoint.every_steps=5", processes=processes)
    assert "resume" in (tmp_path / "run/metrics.jsonl").read_text()
    assert resumed["world_size"] == processes
    one = summary(runs / "cuda")
    assert same(resumed, one if processes == 1 else train(tmp_path / "whole", dataset, "cuda", processes=2))


WITHOUT_WAITS = {
    "bags": [],
    "bags, column-wise": ["sharding.types=column_wise"],
    "cat": ["model.interaction=cat"],
    "dcn": ["model=dlrm_dcn", "model.embedding_dim=16", "model.dense_arch=[32,16]", "model.over_arch=[32,1]"],
    "bf16": ["runtime.precision=bf16"],
    "fp16 tables": ["model.tables.storage=fp16"],
    "row-wise Adagrad": ["optimizer=rowwise_adagrad"],
}
LOGGED_STEP = 5  # after it the loop reads the losses of the steps before it


@pytest.mark.medium
def test_operators_and_waits_of_a_step(runs: Path) -> None:
    """DLRM with dot products, two layers each way, Adagrad: see README.md for what a wait is."""
    steps = read_steps(Path(f"{runs}/counts.0"))
    assert len(steps) == 14
    step = steps[2]  # from the end of step 2 to that of step 3
    assert sum(step["sent"].values()) == 60
    assert {name: count for name, count in step["sent"].items() if "_foreach_" in name} == {
        f"aten::_foreach_{name}": 1
        for name in ("add_.Scalar", "addcdiv_.Scalar", "addcmul_.Scalar", "mul.ScalarList", "norm.Scalar", "sqrt")
    }  # Adagrad over all dense parameters, 32 operators one by one; and whether their gradients are finite, 8
    assert [number for number, step in enumerate(steps) if step["waits"]] == [0, LOGGED_STEP, 2 * LOGGED_STEP]
    # The norm of the gradients is read after the sums, for which the device was waited for.
    assert steps[LOGGED_STEP]["waits"] == {"aten::_local_scalar_dense": 1, "aten::copy_": 1, "synchronize": 1}


@pytest.mark.slow("processes")
def test_no_step_waits(dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {
        case: [*overrides, "train.log_every_steps=50", f"data.path={ragged if 'bags' in case else dataset}"]
        for case, overrides in WITHOUT_WAITS.items()
    }
    counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/counts"}
    train_several(tmp_path / "runs", dataset, "cuda", cases, environment=counts)
    steps = read_steps(tmp_path / "counts.0")
    for number, case in enumerate(WITHOUT_WAITS):
        waits = [step["waits"] for step in steps[14 * number : 14 * (number + 1)]]
        after_warm_up = {"aten::copy_": 1, "synchronize": 1}  # step 10
        assert waits[1:] == [{}] * 9 + [after_warm_up] + [{}] * 3, case


GRAPHS = "runtime.compile=step"
LAYERS = {
    "cat": ["model.interaction=cat"],
    "dcn": SMALL_DCN,
    "projection": SMALL_PROJECTION,
    "scalar_pairs": ["model.interaction=scalar_pairs"],
    "dot in bf16": ["runtime.precision=bf16"],
    "projection in bf16": [*SMALL_PROJECTION, "runtime.precision=bf16"],
    "scalar_pairs in bf16": ["model.interaction=scalar_pairs", "runtime.precision=bf16"],
    "row-wise": ["sharding.types=row_wise"],
    "the planner's layout": ["sharding.types=null"],
    "quotients and remainders": CASES["quotients and remainders"],
    "compressed exchange": CASES["compressed exchange"],
    "pipeline": CASES["pipeline"],
    "skipped steps": CASES["skipped steps"],
    "Adagrad, clipped gradients": ["optimizer=adagrad", "optimizer.max_grad_norm=0.01"],
    "dropout": ["model.dropout=0.3", "model.dense_dropout=0.1"],
}
EXCHANGED = ("row-wise", "the planner's layout", "compressed exchange", "pipeline")
GRAPHS_ON_TWO = (*EXCHANGED, "skipped steps")


@pytest.mark.medium
def test_a_step_sends_two_graphs_each_way(dataset: Path, runs: Path, tmp_path: Path) -> None:
    """Lookup, loss, optimizer, checks and copies to graphs stay outside them: 37 operators; 60 without graphs."""
    counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/counts"}
    overrides = [GRAPHS, "optimizer=adagrad", "train.log_every_steps=50"]
    train(tmp_path, dataset, "cuda", *overrides, environment=counts)
    assert summary(tmp_path)["digest"] == summary(runs / "adagrad")["digest"]
    steps = read_steps(tmp_path / "counts.0")
    assert steps[2]["sent"]["graph"] == 4
    assert sum(steps[2]["sent"].values()) == 37
    assert all(not step["waits"] for step in steps[1:10])


@pytest.mark.slow("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_bits_of_graphs(processes: int, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {
        case: LAYERS[case] for case in LAYERS if (case in GRAPHS_ON_TWO if processes == 2 else case not in EXCHANGED)
    }
    if processes == 1:
        cases |= {"batch norm": REGULARISED, "bags of any length": [f"data.path={ragged}"]}
    eager, graphs = (
        train_several(
            tmp_path / name,
            dataset,
            "cuda",
            {case: [*overrides, f"runtime.compile={name}"] for case, overrides in cases.items()},
            processes=processes,
        )
        for name in ("none", "step")
    )
    assert differing(graphs, eager) == []


@pytest.mark.slow("processes")
def test_a_resumed_run_ends_as_the_whole_and_replays(dataset: Path, runs: Path, tmp_path: Path) -> None:
    for steps in (6, 14):
        train(tmp_path, dataset, "cuda", GRAPHS, f"train.max_steps={steps}")
    assert same(summary(tmp_path), summary(runs / "cuda"))
    assert json.loads(command("verify", tmp_path, f"run={tmp_path}/run"))["verdict"] == "identical"
    words = [f"run={tmp_path}/run", "split=val", "runtime.platform=cpu"]
    evaluated = json.loads(command("evaluate", tmp_path, *words))
    assert evaluated["auc"] == summary(runs / "cuda")["eval"]["auc"]


@pytest.mark.slow("processes")
def test_whole_steps_are_measured_with_graphs(tmp_path: Path) -> None:
    """Beside lookups, and with the products of a plain step, though graphs do not show theirs."""
    sizes = ["operators=[embedding_bag,step]", "shape.batch_size=32", "seconds=0.02", "shape.most_rows=50"]
    sizes += ["model.embedding_dim=16", "model.dense_arch=[32,16]"]
    flops = {}
    for name in ("none", "step"):
        counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/{name}"}
        words = [*sizes, "runtime.platform=cuda", f"runtime.compile={name}", f"out={tmp_path}/{name}.json"]
        command("bench", tmp_path, *words, environment=counts)
        results = json.loads((tmp_path / f"{name}.json").read_text())["results"]
        flops[name] = {result["name"]: result["flops"] for result in results}
    assert flops["step"] == flops["none"]
    assert {"step/inference", "step/train"} < set(flops["none"])
    assert read_steps(tmp_path / "step.0")[-1]["sent"]["graph"] == 4


@pytest.mark.medium
def test_graphs_without_a_gpu_are_refused(dataset: Path, tmp_path: Path) -> None:
    process = run("app.train", *TINY, f"data.path={dataset}", "runtime.platform=cpu", GRAPHS, cwd=tmp_path)
    assert process.returncode == 2
    assert error_line(process.stderr).endswith(
        "runtime.compile=step: CUDA graphs need a GPU; give runtime.compile=none, or runtime.compile=dense"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.medium
def test_auto_takes_graphs_where_all_batches_have_one_shape(
    dataset: Path, ragged: Path, runs: Path, tmp_path: Path
) -> None:
    """The run says which and why; where it takes them, the bits are those of plain steps."""
    assert same(train(tmp_path, dataset, "cuda", "runtime.compile=auto"), summary(runs / "cuda"))
    assert "runtime.compile=auto: step; CUDA graphs of the dense layers" in (tmp_path / "run/log.txt").read_text()
    cases = {"step": [f"data.path={ragged}"], "none": ["train.drop_last=false"]}
    auto = {name: [*keys, "runtime.compile=auto"] for name, keys in cases.items()}
    train_several(tmp_path / "runs", dataset, "cuda", auto)
    for number, chosen in enumerate(cases):
        assert json.loads((tmp_path / f"runs/{number}/run/manifest.json").read_text())["compile"] == chosen


@pytest.mark.slow("processes")
def test_recommend(tmp_path: Path) -> None:
    """Candidates are ranked by the same logits as on the CPU."""
    (tmp_path / "raw.tsv").write_bytes(oracle.make_rows(400, seed=4))
    command("data_prep.__main__", tmp_path, "data.raw=raw.tsv", "data.path=data")
    train(tmp_path, tmp_path / "data", "cuda", "train.max_steps=3", "eval.split=test")
    results = {}
    for platform in ("cpu", "cuda"):
        words = ["run=run", "candidates=raw.tsv", "top_k=null", f"runtime.platform={platform}"]
        command("recommend", tmp_path, *words, f"out={platform}.json")
        results[platform] = json.loads((tmp_path / f"{platform}.json").read_text())["ranking"]
    assert len(results["cuda"]) == 400
    assert results["cuda"] == results["cpu"]


@pytest.mark.slow("processes")
def test_doctor_sees_the_device(tmp_path: Path) -> None:
    process = run("app.doctor", "json=true", cwd=tmp_path)
    assert "Pretended GPU, sm_90" in process.stdout, process.stderr


@pytest.mark.slow("processes")
def test_limits_are_not_measured_without_memory(tmp_path: Path) -> None:
    words = ["runtime.platform=cuda", "operators=[step]", "seconds=0.01"]
    process = run("app.bench", *words, cwd=tmp_path, environment={"PRETEND_CUDA_MEMORY": str(2 << 20)})
    assert (process.returncode, "too little free memory on the GPU" in process.stderr) == (2, True), process.stderr


@pytest.mark.slow("processes")
def test_an_error_ends_all_processes(dataset: Path, tmp_path: Path) -> None:
    """Not finite on all, or no memory on one, for which the other would wait for 30 minutes, longer than a test may."""
    with pytest.raises(AssertionError, match="non-finite"):
        train(tmp_path / "all", dataset, "cuda", "optimizer.lr=1e30", processes=2)
    fault = {"FAULT": "process 1 has no memory:3"}
    with pytest.raises(AssertionError, match="out of memory"):
        train(tmp_path / "one", dataset, "cuda", processes=2, environment=fault)
