"""However the tables are spread, the losses are those of one process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.config import QCommConfig
from app.config.sharding import COLUMN_TYPES, SHARDING_TYPES, CommPrecision
from app.sharding.execute import codecs
from tests.app.conftest import SMALL
from tests.app.group import run_group
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
    """TorchRec's own registry makes fp16 of bf16 on CPU."""
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    registry = codecs(QCommConfig(CommPrecision.bf16, CommPrecision.fp16))
    assert registry is not None
    for codec in registry.values():
        assert torch.equal(codec.forward.encode(values), values.bfloat16())
        assert torch.equal(codec.backward.encode(values), values.half())
    assert codecs(QCommConfig()) is None


@pytest.mark.slow("examples")
def test_what_travels_in_fewer_bits(dataset: Path, tmp_path: Path) -> None:
    """Each way of rounding changes the losses, and a little only; gradients tell at a high rate."""
    for kind in ("table_wise", "row_wise"):
        ways = [("fp32", "fp32"), ("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "fp16"), ("fp32", "bf16")]
        base = case(dataset, "sgd", f"sharding.types={kind}", "optimizer.lr=3")
        cases = [[*base, f"sharding.qcomm.forward={there}", f"sharding.qcomm.backward={back}"] for there, back in ways]
        exact, *rounded = (result["losses"] for result in run_group(cases, 2, tmp_path / f"{kind}.json"))
        for way, losses in zip(ways[1:], rounded, strict=True):
            assert losses != exact, (kind, way)
            np.testing.assert_allclose(losses, exact, rtol=0.02, err_msg=f"{kind} {way}")
