"""Same bits on any number of processes and threads, with a pipeline, and recorded or compiled steps."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.runtime.platform import Runtime, are_equal_on_threads
from app.training import session
from tests.app.conftest import SMALL, Command
from tests.app.datasets import write_dataset
from tests.app.group import run_group
from tests.app.in_process import train_here
from tests.app.run_files import events, losses, summary
from tests.covering import Case, covering_cases
from tests.once import made_once

LAYOUT = "train.deterministic=layout"
UNEVEN = ["train.drop_last=false", "eval.exact_rows=100"]  # metrics and curves from histograms, too
FACTORS: dict[str, dict[str, list[str]]] = {
    "rows": {
        "clicks": ["train.global_batch_size=96", "train.micro_batch_size=16"],
        "last batch": ["train.global_batch_size=100", "train.micro_batch_size=16", *UNEVEN],
        "bags": ["train.global_batch_size=96", "train.micro_batch_size=16"],
        "wide": ["train.global_batch_size=500", "train.micro_batch_size=250", "model.dense_arch=[512,256,16]"],
    },
    "optimizer": {name: [f"optimizer={name}"] for name in ("adagrad", "rowwise_adagrad", "adam", "lamb", "sgd")},
    "interaction": {name: [f"model.interaction={name}"] for name in ("dot", "cat", "dcn", "projection")},
    "regularisation": {
        "none": [],
        "dropout": ["model.dropout=0.3"],
        "batch norm": ["model.batch_norm=true", "model.dropout=0.1"],
        "clipping": ["optimizer.max_grad_norm=0.1"],
        "decay": ["optimizer.sparse_weight_decay=1e-3", "optimizer.clip_tables=true", "optimizer.max_grad_norm=0.1"],
    },
    "sharding": {name: [f"sharding.types={name}"] for name in ("table_wise", "column_wise", "row_wise", "null")},
    "layout": {"2x1": [], "2x2": [], "3x1": [], "4x1": []},
    "course": {"whole": [], "begun by one process": [], "ended by one process": []},
}


@functools.cache
def several_threads() -> int:
    """Return 2, or 1 where products depend on threads, so that several are refused (see runtime/test_platform.py)."""
    threads = torch.get_num_threads()
    try:
        return 2 if are_equal_on_threads(2) else 1
    finally:
        torch.set_num_threads(threads)


def is_valid(case: Case) -> bool:
    """Leave out what the commands refuse."""
    replicated = case["regularisation"] == "decay" or case["optimizer"] in ("adam", "lamb")
    refused = (
        case["regularisation"] == "decay" and case["optimizer"] == "lamb",
        case["sharding"] == "column_wise" and case["optimizer"] not in ("adagrad", "sgd"),
        case["rows"] == "bags" and case["sharding"] == "row_wise",
        case["rows"] == "wide" and case["layout"] in ("3x1", "4x1"),
        replicated and case["sharding"] != "null",
    )
    return not any(refused)


CASES = covering_cases({factor: list(values) for factor, values in FACTORS.items()}, is_valid)


def bits(run: Path) -> dict[str, Any]:
    """Return what no layout may change."""
    names = ("step", "steps", "loss", "accuracy", "gradient_norm", "auc", "logloss", "ne", "calibration", "ece")
    logged = [{name: event.get(name) for name in names} for kind in ("train", "eval") for event in events(run, kind)]
    return {"digest": summary(run)["digest"], "curves": json.loads((run / "curves.json").read_text()), "events": logged}


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=[pytest.mark.slow] * (number % 2)) for number in range(len(CASES))]
)
def test_bits_do_not_depend_on_the_layout(
    run_app: Command, ragged: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    def write_clicks(directory: Path) -> None:
        write_dataset(directory, {"train": 1_100, "val": 201, "test": 50}, shard_rows=300)

    case = CASES[number]
    root = ragged if case["rows"] == "bags" else made_once(tmp_path_factory, "any_layout", write_clicks)
    overrides = [f"data.path={root}", *SMALL, LAYOUT, "train.max_steps=12", "train.epochs=50", "optimizer.lr=0.02"]
    overrides += ["train.eval_every_steps=6", "checkpoint.every_steps=4", "record.tensorboard=false"]
    overrides += [key for factor, values in FACTORS.items() for key in values[case[factor]]]
    run_app("train", *overrides, "run.name=one")
    processes, threads = map(int, case["layout"].split("x"))
    several = [*overrides, "run.name=several", f"runtime.num_threads={min(threads, several_threads())}"]
    courses = {"whole": [processes], "begun by one process": [1, processes], "ended by one process": [processes, 1]}
    *first, last = courses[case["course"]]
    for count in first:
        run_app("train", *several, "train.max_steps=8", processes=count)
    ended = run_app("train", *several, processes=last)
    assert ("the same bits" in ended.stderr) == (case["course"] != "whole")
    one, other = (bits(tmp_path / "runs" / name) for name in ("one", "several"))
    assert one["digest"] == other["digest"]
    assert case["course"] != "whole" or one == other


STEPS = 35  # 31 make an epoch: the pipeline runs empty there, at evaluations and at the end
LAYOUTS = {
    "row_wise": ["sharding.types=row_wise"],
    "table_wise": ["sharding.types=table_wise", "train.eval_every_steps=null"],
    "mixed": ["sharding.types=column_wise", "+sharding.tables.cat_1.types=data_parallel"],
    "bags": ["sharding.types=row_wise", "optimizer=rowwise_adagrad"],
}


@pytest.mark.slow("examples")
def test_bits_are_the_same(dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = []
    for layout, pipeline in itertools.product(LAYOUTS, ("none", "sparse_dist")):
        name, root = f"{layout}_{pipeline}", ragged if "bags" in layout else dataset
        keys = [f"data.path={root}", f"run.name={name}", f"run.dir={tmp_path}/{name}", f"train.max_steps={STEPS}"]
        cases.append([*SMALL, *keys, "train.eval_every_steps=15", f"train.pipeline={pipeline}", *LAYOUTS[layout]])
    results = run_group(cases, 2, tmp_path / "results.json")
    for layout, plain, piped in zip(LAYOUTS, results[::2], results[1::2], strict=True):
        assert plain["steps"] == STEPS
        assert all(plain[key] == piped[key] for key in ("steps", "digest", "eval")), layout


@pytest.mark.slow("processes")
def test_a_stop_loses_no_batch(run_app: Command, small: list[str], tmp_path: Path) -> None:
    common = [*small, f"train.max_steps={STEPS}", "sharding.types=row_wise"]
    piped, run = [*common, "run.name=piped", "train.pipeline=sparse_dist"], tmp_path / "runs/piped"
    assert "pipeline: none" in run_app("train", *common, "run.name=plain", processes=2).stderr
    stopped = run_app("train", *piped, processes=2, fault="SIGTERM in the step:15", status=75)
    assert "pipeline: sparse_dist" in stopped.stderr
    assert summary(run)["steps"] == 20  # processes ask each other every 10 steps
    run_app("train", *piped, processes=2)
    assert losses(run) == losses(tmp_path / "runs/plain")
    assert summary(run)["digest"] == summary(tmp_path / "runs/plain")["digest"]


def test_a_step_that_cannot_be_recorded_is_a_plain_one(
    runtime: Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's recorder fails on a CPU; the bits are those of runtime.compile=none, and the reason is kept."""
    keys = [*SMALL, f"data.path={dataset}", "train.max_steps=4", "optimizer=adam", "model.batch_norm=true"]
    train_here(runtime, *keys, "runtime.compile=none", f"run.dir={tmp_path}/plain")
    kept: list[str] = []
    compile_step = session.Session.compile

    def compile_and_keep(self: session.Session, batch_size: int) -> None:
        compile_step(self, batch_size)
        kept.append(self.compile_reason)

    monkeypatch.setattr(session.Session, "_obstacle_to_graphs", lambda *_: "")
    monkeypatch.setattr(session.Session, "compile", compile_and_keep)
    train_here(runtime, *keys, f"run.dir={tmp_path}/auto")
    assert kept[0].startswith("this step cannot be recorded (")
    assert summary(tmp_path / "auto")["digest"] == summary(tmp_path / "plain")["digest"]


@pytest.mark.slow("tool")
def test_compiled_losses_are_eager(run_app: Command, small: list[str], tmp_path: Path) -> None:
    for name in ("none", "dense"):
        keys = [*small, f"run.name={name}", "train.max_steps=10"]
        run_app("train", *keys, f"runtime.compile={name}")
    eager, compiled = losses(tmp_path / "runs/none"), losses(tmp_path / "runs/dense")
    assert len(eager) == 10
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)
