"""`python -m app.bench` as a user runs it; bytes and FLOPs against counts by hand, timing against a known wait."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from app import bench
from app.config.kinds import OptimizerName
from app.config.model import Interaction, ModelConfig
from app.metrics import timing
from app.metrics.timing import time_work
from tests.app.conftest import Command, Refusal

TINY = ["seconds=0.001", "runtime.num_threads=1", "shape.batch_size=16", "shape.num_embeddings=[50,7]"]
TINY += ["model.dense_arch=[8,4]", "model.embedding_dim=4", "model.over_arch=[8,1]"]
CPU = torch.device("cpu")
SHAPE = bench.Shape(batch_size=8, num_dense=5, num_embeddings=(50, 7, 300), embedding_dim=4, bag_sizes=(1, 3, 2))
MODEL = ModelConfig(embedding_dim=4, dense_arch=[16, 4], over_arch=[16, 1], dcn_num_layers=2, dcn_low_rank_dim=3)


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


@pytest.mark.parametrize(
    ("override", "words"),
    [("operators=[mpl]", "must begin with one of embedding_bag"), ("shape.bag_sizes=[1]", "1 of them for 2 tables")],
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
        model = replace(MODEL, interaction=cast(Interaction, interaction))
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
