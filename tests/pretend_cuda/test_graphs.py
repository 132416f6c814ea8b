"""runtime.compile=step: a step whose dense layers are graphs has the bits of one whose kernels are sent one by one."""

import json
from pathlib import Path

import pytest

from tests.error_lines import error_line
from tests.pretend_cuda.counting import read_steps
from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import TINY, command, differing, same, summary, train, train_several
from tests.pretend_cuda.test_training import CASES, REGULARISED, SMALL_DCN, SMALL_PROJECTION

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
ON_TWO = (*EXCHANGED, "skipped steps")


@pytest.mark.medium
def test_a_step_sends_two_graphs_each_way(machine: Machine, dataset: Path, runs: Path, tmp_path: Path) -> None:
    """Lookup, loss, optimizer, checks and copies to graphs stay outside them: 37 operators; 60 without graphs."""
    counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/counts"}
    overrides = [GRAPHS, "optimizer=adagrad", "train.log_every_steps=50"]
    train(machine, tmp_path, dataset, "cuda", *overrides, environment=counts)
    assert summary(tmp_path)["digest"] == summary(runs / "adagrad")["digest"]
    steps = read_steps(tmp_path / "counts.0")
    assert steps[2]["sent"]["graph"] == 4
    assert sum(steps[2]["sent"].values()) == 37
    assert all(not step["waits"] for step in steps[1:10])


@pytest.mark.slow("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_bits(processes: int, machine: Machine, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {case: LAYERS[case] for case in LAYERS if (case in ON_TWO if processes == 2 else case not in EXCHANGED)}
    if processes == 1:
        cases |= {"batch norm": REGULARISED, "bags of any length": [f"data.path={ragged}"]}
    eager, graphs = (
        train_several(
            machine,
            tmp_path / name,
            dataset,
            "cuda",
            {case: [*overrides, f"runtime.compile={name}"] for case, overrides in cases.items()},
            processes,
        )
        for name in ("none", "step")
    )
    assert differing(graphs, eager) == []


@pytest.mark.slow("processes")
def test_a_resumed_run_ends_as_the_whole_and_replays(
    machine: Machine, dataset: Path, runs: Path, tmp_path: Path
) -> None:
    for steps in (6, 14):
        train(machine, tmp_path, dataset, "cuda", GRAPHS, f"train.max_steps={steps}")
    assert same(summary(tmp_path), summary(runs / "cuda"))
    assert json.loads(command(machine, "verify", tmp_path, f"run={tmp_path}/run"))["verdict"] == "identical"
    words = [f"run={tmp_path}/run", "split=val", "runtime.platform=cpu"]
    evaluated = json.loads(command(machine, "evaluate", tmp_path, *words))
    assert evaluated["auc"] == summary(runs / "cuda")["eval"]["auc"]


@pytest.mark.slow("processes")
def test_whole_steps_are_measured_with_graphs(machine: Machine, tmp_path: Path) -> None:
    """And with the products of a plain step, though graphs do not show theirs."""
    sizes = ["operators=[step]", "shape.batch_size=32", "seconds=0.02", "shape.most_rows=50"]
    sizes += ["model.embedding_dim=16", "model.dense_arch=[32,16]"]
    flops = {}
    for name in ("none", "step"):
        counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/{name}"}
        words = [*sizes, "runtime.platform=cuda", f"runtime.compile={name}", f"out={tmp_path}/{name}.json"]
        command(machine, "bench", tmp_path, *words, environment=counts)
        results = json.loads((tmp_path / f"{name}.json").read_text())["results"]
        flops[name] = {result["name"]: result["flops"] for result in results}
    assert flops["step"] == flops["none"]
    assert set(flops["none"]) == {"step/inference", "step/train"}
    assert read_steps(tmp_path / "step.0")[-1]["sent"]["graph"] == 4


@pytest.mark.medium
def test_without_a_gpu_it_is_refused(machine: Machine, dataset: Path, tmp_path: Path) -> None:
    process = machine.run("app.train", *TINY, f"data.path={dataset}", "runtime.platform=cpu", GRAPHS, cwd=tmp_path)
    assert process.returncode == 2
    assert error_line(process.stderr).endswith(
        "runtime.compile=step: CUDA graphs need a GPU; give runtime.compile=none, or runtime.compile=dense"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.medium
def test_auto_takes_graphs_where_all_batches_have_one_shape(
    machine: Machine, dataset: Path, ragged: Path, runs: Path, tmp_path: Path
) -> None:
    """The run says which and why; where it takes them, the bits are those of plain steps."""
    assert same(train(machine, tmp_path, dataset, "cuda", "runtime.compile=auto"), summary(runs / "cuda"))
    assert "runtime.compile=auto: step; CUDA graphs of the dense layers" in (tmp_path / "run/log.txt").read_text()
    cases = {"step": [f"data.path={ragged}"], "none": ["train.drop_last=false"]}
    auto = {name: [*keys, "runtime.compile=auto"] for name, keys in cases.items()}
    train_several(machine, tmp_path / "runs", dataset, "cuda", auto)
    for number, chosen in enumerate(cases):
        assert json.loads((tmp_path / f"runs/{number}/run/manifest.json").read_text())["compile"] == chosen
