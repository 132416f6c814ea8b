"""`python -m app.bench` as a user runs it."""

import json
from pathlib import Path

import pytest
import torch

from app.bench import shape_of
from app.benchmark import operators
from app.benchmark.compare import comparison
from app.benchmark.shape import Shape
from app.config import CONFIG_DIR, ModelConfig
from app.config.commands import FAMILIES, BenchConfig
from app.record.provenance import describe_run
from common.compose import compose_config
from common.documents import plain_object
from common.errors import UserError
from tests.app.conftest import Command, Refusal

TINY = ["seconds=0.001", "runtime.num_threads=1", "shape.batch_size=16", "shape.num_embeddings=[50,7]"]
TINY += ["model.dense_arch=[8,4]", "model.embedding_dim=4", "model.over_arch=[8,1]", "inference.batch_sizes=[1,4]"]
TINY += ["inference.least_runs=20"]


@pytest.mark.slow("processes")
def test_everything_is_measured_with_its_counts(run_app: Command, tmp_path: Path) -> None:
    process = run_app("bench", *TINY, "shape.bag_sizes=[2,1]", f"operators=[{','.join(FAMILIES)}]", "out=bench.json")
    document = json.loads((tmp_path / "bench.json").read_bytes())
    families = {result["name"].split("/")[0] for result in document["results"]}
    assert families == {"embedding_bag", "interaction", "mlp", "optimizer_step", "input", "step", "inference"}
    assert "nothing to exchange in one process" in process.stderr
    for result in document["results"]:
        assert 0 < result["p10_ms"] <= result["median_ms"] <= result["p90_ms"], result
        assert min(result["bytes"], result["share_of_bandwidth"]) > 0
    train = next(result for result in document["results"] if result["name"] == "step/train")
    assert min(train["flops"], document["ceilings"]["bytes_per_second"]) > 0
    assert document["shape"]["bag_sizes"] == [2, 1]
    latencies = [result for result in document["results"] if result["p99_ms"] is not None]
    names = [f"inference/{form}_b{size}" for form in ("sharded", "fp32", "fp16", "int8", "int4") for size in (1, 4)]
    assert sorted(result["name"] for result in latencies) == sorted(names)
    for result in latencies:
        assert result["median_ms"] <= result["p95_ms"] <= result["p99_ms"], result
        assert result["runs_per_timed_sample"] == 1
        assert result["timed_samples"] >= 20
    lines = [line for line in process.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == len(document["results"]) + len(latencies) + 4


def write_results(path: Path, *, batch_size: int = 16, **cases: float) -> str:
    """A document of bench with the medians, in ms, of these cases."""
    figures = {"share_of_bandwidth": 0.5, "share_of_matrix_rate": None}
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
        with pytest.raises(UserError, match=message):
            comparison(paths)


@pytest.mark.slow("processes")
def test_a_choice_of_operators(run_app: Command, tmp_path: Path) -> None:
    run_app("bench", *TINY, "operators=[mlp/over_arch,optimizer_step/sgd]", "out=bench.json")
    names = [result["name"] for result in json.loads((tmp_path / "bench.json").read_bytes())["results"]]
    assert names == ["mlp/over_arch_forward", "mlp/over_arch_train", "optimizer_step/sgd"]
    compared = run_app("bench", "compare=[bench.json,bench.json]").stdout
    assert [line.split()[-2] for line in compared.splitlines() if line.startswith("| mlp")] == ["1.00", "1.00"]


@pytest.mark.slow("processes")
def test_a_case_without_memory_costs_no_other(run_app: Command, tmp_path: Path) -> None:
    """The second of them: the results of those before and after it are kept."""
    keys = [*TINY, "operators=[mlp/over_arch,optimizer_step/sgd]", "out=bench.json"]
    process = run_app("bench", *keys, fault="no memory for a measurement:2")
    assert "mlp/over_arch_train skipped: out of memory; give a smaller shape.batch_size" in process.stderr
    names = [result["name"] for result in json.loads((tmp_path / "bench.json").read_bytes())["results"]]
    assert names == ["mlp/over_arch_forward", "optimizer_step/sgd"]


def test_a_recipe_may_give_the_batch_of_each_process() -> None:
    config = compose_config(BenchConfig, CONFIG_DIR, ["recipe=amd_2026"], "bench")
    assert shape_of(config, 8).batch_size == shape_of(config, 1).batch_size == 32768


def test_products_beyond_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, model = Shape(4, 3, (5, 6), 4, (1, 1)), ModelConfig(embedding_dim=4, dense_arch=[4], over_arch=[1])

    def kinds() -> set[str]:
        cases = operators.dense_cases(shape, model, torch.device("cpu"), torch.float32)
        return {case.name.split("/")[1] for case in cases if case.family == "interaction"}

    everything = kinds()
    monkeypatch.setattr(operators, "MAX_PRODUCTS_BYTES", 1)
    assert everything - kinds() == {"scalar_pairs_forward", "scalar_pairs_train"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("operators=[mpl]", "must begin with one of embedding_bag"),
        ("shape.bag_sizes=[1]", "1 of them for 2 tables"),
        ("shape.num_embeddings=[]", "at least 1"),
        ("seconds=0", "above 0"),
        ("inference.batch_sizes=[0]", "inference.batch_sizes=[0]: must be a list of numbers of at least 1"),
    ],
)
def test_bad_choices_are_named(refused_command: Refusal, override: str, words: str) -> None:
    assert words in refused_command("bench", *TINY, override)
