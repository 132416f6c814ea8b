"""Bytes and FLOPs against counts by hand, timing against a known wait, and the table of what came out."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from app.benchmark import operators, steps
from app.benchmark.case import Case, result, results_table
from app.benchmark.shape import Shape, keyed, random_batch, random_ids
from app.config import ModelConfig, OptimizerName, TablePrecision
from app.metrics import ceilings
from app.metrics.ceilings import WARM_UP_RUNS, WorkTiming, time_work

CPU = torch.device("cpu")
SHAPE = Shape(batch_size=8, num_dense=5, num_embeddings=(50, 7, 300), embedding_dim=4, bag_sizes=(1, 3, 2))
MODEL = ModelConfig(
    embedding_dim=4,
    dense_arch=[16, 4],
    over_arch=[16, 1],
    dcn_num_layers=2,
    dcn_low_rank_dim=3,
    projection_branch1=[8],
    projection_branch2=[12],
)


def by_name(cases: Iterator[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


def test_bytes_of_lookups_and_updates() -> None:
    ids, rows, pooled = 8 * 6, 8 * 6 * 4, 8 * 3 * 4
    assert operators.lookup_bytes(SHAPE) == 4 * (ids + rows + pooled)
    for optimizer, state in (("sgd", 0), ("adagrad", rows), ("rowwise_adagrad", ids), ("adam", 2 * rows)):
        moved = operators.update_bytes(SHAPE, OptimizerName[optimizer].algorithm)
        assert moved == 4 * (ids + pooled + 2 * (rows + state)), optimizer


def test_flops_are_those_of_the_formulas() -> None:
    cases = by_name(operators.dense_cases(SHAPE, MODEL, CPU, torch.float32))
    vectors, dim, batch = 4, 4, 8
    pairs = vectors * vectors  # as executed: the whole symmetric product
    assert cases["interaction/dot_forward"].flops == batch * pairs * 2 * dim
    assert cases["interaction/dot_train"].flops == 3 * cases["interaction/dot_forward"].flops
    assert cases["interaction/cat_forward"].flops == 0
    width = vectors * dim
    assert cases["interaction/dcn_forward"].flops == batch * 2 * (2 * 2 * width * 3)
    assert cases["mlp/dense_arch_forward"].flops == batch * 2 * (5 * 16 + 16 * 4)
    assert cases["mlp/dense_arch_train"].flops == 3 * cases["mlp/dense_arch_forward"].flops
    over = dim + vectors * (vectors - 1) // 2
    assert cases["mlp/over_arch_forward"].flops == batch * 2 * (over * 16 + 16)
    weights = 5 * 16 + 16 + 16 * 4 + 4
    assert cases["mlp/dense_arch_forward"].bytes == 4 * (weights + batch * (5 + 16 + 4))
    assert operators.dense_parameters(SHAPE, MODEL) == weights + over * 16 + 16 + 16 + 1


def test_all_lookups_run_and_tell_their_samples() -> None:
    cases = by_name(operators.lookup_cases(SHAPE, CPU))
    some = ("torch_sgd_sum_train", "tbe_sgd_mean_forward", "tbe_rowwise_adagrad_sum_train")
    assert {f"embedding_bag/{name}" for name in some} <= set(cases)
    for case in cases.values():
        case.work()
        assert case.samples == 8


def test_random_input_is_of_the_shape_and_seeded() -> None:
    batch = random_batch(SHAPE, 1, CPU)
    lengths = batch.sparse_features.lengths().view(3, 8)
    assert [row.unique().tolist() for row in lengths] == [[1], [3], [2]]
    for ids, rows in zip(random_ids(SHAPE, 1), SHAPE.num_embeddings, strict=True):
        assert 0 <= ids.min() <= ids.max() < rows
    repeat = random_batch(SHAPE, 1, CPU)
    assert torch.equal(batch.dense_features, repeat.dense_features)
    assert torch.equal(batch.sparse_features.values(), keyed(SHAPE, random_ids(SHAPE, 1)).values())


def test_timing_of_a_known_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a clock that the work itself moves on."""
    now = [0.0]
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def take(seconds: float) -> None:
        now[0] += seconds

    timing = time_work(lambda: take(2**-7), CPU, seconds=0.1)
    assert timing == (2**-7, 2**-7, 2**-7, 13, 1, None, None)
    short = time_work(lambda: take(2**-20), CPU, seconds=0.01)
    assert short == (2**-20, 2**-20, 2**-20, 5, 2098, None, None)  # 2 ms at a time
    waits = itertools.count(1 - WARM_UP_RUNS)  # the first run that is timed, of 1, is no sample
    one = time_work(lambda: take(max(next(waits), 0) / 1024), CPU, 0.001, one_by_one=30)
    median, p95, p99 = np.percentile(np.arange(2, 32) / 1024, [50, 95, 99])
    assert (one.median, one.p95, one.p99, one.samples, one.runs_per_sample) == (median, p95, p99, 30, 1)


def test_bytes_of_scoring() -> None:
    ids, row = 8 * 6, {"fp32": 16, "fp16": 8, "int8": 4 + 4, "int4": 2 + 4}
    for precision, bytes_a_row in row.items():
        samples, pooled = 8 * (5 + 1), 8 * 3 * 4
        expected = ids * (4 + bytes_a_row) + 4 * (samples + pooled + 100)
        assert steps.forward_bytes(SHAPE, TablePrecision[precision], dense=100) == expected


@pytest.mark.slow("examples")
def test_ceilings_and_shares() -> None:
    measurement = ceilings.measure_ceilings(CPU, torch.float32, seconds=0.01)
    assert measurement is not None
    assert min(measurement.bytes_per_second, measurement.flops_per_second) > 1e8
    better = ceilings.higher(measurement, measurement._replace(bytes_per_second=1e15))
    assert better == (1e15, measurement.flops_per_second, "float32")
    limits = ceilings.Ceilings(1e9, 2e9, "float32")
    figures = result(Case("mlp/x", "", lambda: None, 10, 500, 4000), WorkTiming(1e-6, 1e-6, 2e-6, 5, 1), limits)
    assert figures["samples_per_second"] == pytest.approx(1e7)
    assert figures["share_of_bandwidth"] == pytest.approx(0.5)
    assert figures["share_of_matrix_rate"] == pytest.approx(2.0)
    lines = results_table([figures], limits).splitlines()
    assert len({len(line) for line in lines[2:]}) == 1
    assert "200%" in lines[-1]


def test_ids_are_long_tailed() -> None:
    shape = Shape(4000, 1, (1000,), 4, (1,))
    (ids,) = random_ids(shape, 0)
    assert np.mean(ids < 100) == pytest.approx(0.1**0.25, abs=0.03)
