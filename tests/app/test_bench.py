"""`python -m app.bench` as a user runs it; bytes and FLOPs against counts by hand, timing against a known wait."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app import bench
from app.bench import comparison
from app.config.kinds import OptimizerName
from app.config.model import Interaction, ModelConfig
from app.metrics import timing
from app.metrics.timing import time_work
from app.record.provenance import describe_run
from common.documents import plain_object
from tests.app.conftest import Command, Refusal
from tests.error_lines import refused

TINY = ["seconds=0.001", "runtime.num_threads=1", "shape.batch_size=16", "shape.num_embeddings=[50,7]"]
TINY += ["model.dense_arch=[8,4]", "model.embedding_dim=4", "model.over_arch=[8,1]"]
CPU = torch.device("cpu")
SHAPE = bench.Shape(batch_size=8, num_dense=5, num_embeddings=(50, 7, 300), embedding_dim=4, bag_sizes=(1, 3, 2))
MODEL = ModelConfig(
    embedding_dim=4,
    dense_arch=[16, 4],
    over_arch=[16, 1],
    dcn_num_layers=2,
    dcn_low_rank_dim=3,
    projection_branch1=[8],
    projection_branch2=[12],
)


@pytest.mark.slow("processes")
def test_everything_is_measured_with_its_counts(run_app: Command, tmp_path: Path) -> None:
    process = run_app("bench", *TINY, "shape.bag_sizes=[2,1]", "out=bench.json")
    document = json.loads((tmp_path / "bench.json").read_bytes())
    families = {result["name"].split("/")[0] for result in document["results"]}
    assert families == {"embedding_bag", "interaction", "mlp", "step"}
    for result in document["results"]:
        assert 0 < result["p10_ms"] <= result["median_ms"] <= result["p90_ms"], result
        assert min(result["bytes"], result["share_of_bandwidth"]) > 0
    train = next(result for result in document["results"] if result["name"] == "step/train")
    assert min(train["flops"], document["ceilings"]["bytes_per_second"]) > 0
    assert document["shape"]["bag_sizes"] == [2, 1]
    lines = [line for line in process.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == len(document["results"]) + 2


def write_results(path: Path, *, batch_size: int = 16, **cases: float) -> str:
    """A document of bench with the medians, in ms, of these cases."""
    figures: dict[str, Any] = {"p10_ms": 1.0, "p90_ms": 1.0, "samples_per_second": None, "bytes": 1, "flops": 0}
    figures |= {"share_of_bandwidth": 0.5, "share_of_matrix_rate": None}
    document = {
        **plain_object(describe_run()),
        "shape": {"batch_size": batch_size},
        "model": {"interaction": "dot"},
        "world_size": 2,
        "platform": "cpu",
        "num_threads": 3,
        "ceilings": {"bytes_per_second": 2e10, "flops_per_second": 1e11, "dtype": "float32"},
        "results": [{"name": name, "median_ms": ms, **figures} for name, ms in cases.items()],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_two_machines_side_by_side(tmp_path: Path) -> None:
    here = write_results(tmp_path / "here.json", step=6.0, mlp=1.0)
    there = write_results(tmp_path / "there.json", step=4.0, input=2.0)
    lines = comparison([here, there]).splitlines()
    assert lines[0].startswith(f"1: {here}: cpu, ")
    assert "2 process(es) of 3 threads, torch 2." in lines[0]
    assert "limits 20.0 GB/s, 100.0 GFLOP/s (float32)" in lines[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert rows[0] == ["", "1: ms", "2: ms", "1: of limit", "2: of limit", "1 / 2"]
    assert rows[2:] == [["step", "6.000", "4.000", "50%", "50%", "1.50"]]
    assert lines[-1] == "Not in all files: input, mlp"


def test_what_is_not_comparable(tmp_path: Path) -> None:
    here = write_results(tmp_path / "here.json", step=6.0)
    larger = write_results(tmp_path / "larger.json", batch_size=32, step=6.0)
    other = write_results(tmp_path / "other.json", mlp=6.0)
    (tmp_path / "damaged.json").write_text('{"shape": {}}')
    for paths, message in (
        ([here, larger], "shape.batch_size is 32, that of .* is 16: times of different work"),
        ([here, other], "no case is in all of them"),
        ([here, str(tmp_path / "none.json")], "none.json: no such file; give files that python -m app.bench out="),
        ([here, str(tmp_path / "damaged.json")], "damaged.json: damaged .*; give files that"),
    ):
        refused(message, comparison, paths)


@pytest.mark.slow("processes")
def test_a_case_without_memory_costs_no_other(run_app: Command, tmp_path: Path) -> None:
    keys = [*TINY, "operators=[mlp/over_arch,step/inference]", "out=bench.json"]
    process = run_app("bench", *keys, fault="no memory for a measurement:1")
    assert "interaction/mlp ends early: out of memory; give a smaller shape.batch_size" in process.stderr
    names = [result["name"] for result in json.loads((tmp_path / "bench.json").read_bytes())["results"]]
    assert names == ["step/inference"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("operators=[mpl]", "must begin with one of embedding_bag"),
        ("shape.bag_sizes=[1]", "1 of them for 2 tables"),
        ("shape.num_embeddings=[]", "at least 1"),
        ("seconds=0", "above 0"),
    ],
)
def test_bad_choices_are_named(refused_command: Refusal, override: str, words: str) -> None:
    assert words in refused_command("bench", *TINY, override)


def by_name(cases: Iterator[bench.Case]) -> dict[str, bench.Case]:
    return {case.name: case for case in cases}


def test_bytes_of_lookups_and_updates() -> None:
    ids, rows, pooled = 8 * 6, 8 * 6 * 4, 8 * 3 * 4
    assert bench.lookup_bytes(SHAPE) == 4 * (ids + rows + pooled)
    for optimizer, state in (("sgd", 0), ("adagrad", rows), ("rowwise_adagrad", ids), ("adam", 2 * rows)):
        moved = bench.update_bytes(SHAPE, OptimizerName[optimizer].algorithm)
        assert moved == 4 * (ids + pooled + 2 * (rows + state)), optimizer


def test_flops_are_those_of_the_formulas() -> None:
    vectors, dim, batch = 4, 4, 8
    width, layers = vectors * dim, {"dot": vectors * vectors * 2 * dim}  # as executed: the whole symmetric product
    layers |= {"cat": 0, "dcn": 2 * (2 * 2 * width * 3)}
    for interaction, forward in layers.items():
        model = replace(MODEL, interaction=Interaction[interaction])
        cases = by_name(bench.product_cases(SHAPE, model, CPU, torch.float32))
        assert cases[f"interaction/{interaction}_train"].flops == 3 * batch * forward
    cases = by_name(bench.product_cases(SHAPE, MODEL, CPU, torch.float32))
    assert cases["mlp/dense_arch_train"].flops == 3 * batch * 2 * (5 * 16 + 16 * 4)
    over = dim + vectors * (vectors - 1) // 2
    assert cases["mlp/over_arch_train"].flops == 3 * batch * 2 * (over * 16 + 16)
    weights = 5 * 16 + 16 + 16 * 4 + 4
    assert cases["mlp/dense_arch_train"].bytes == 3 * 4 * (weights + batch * (5 + 4))


def test_timing_of_a_known_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def take(seconds: float) -> None:
        now[0] += seconds

    assert time_work(lambda: take(2**-7), CPU, seconds=0.1) == (2**-7, 2**-7, 2**-7, 13, 1)
    assert time_work(lambda: take(2**-20), CPU, seconds=0.01) == (2**-20, 2**-20, 2**-20, 5, 2098)  # 2 ms at a time
