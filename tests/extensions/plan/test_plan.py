"""`python -m app.plan`: what it says of hardware that is not here, and that a run trains by what it wrote."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.model import PUBLISHED_TABLES
from common.keys import keys_of
from extensions.plan.keys import PlanAppConfig
from tests.app.conftest import SMALL, Command
from tests.app.datasets import NUM_EMBEDDINGS
from tests.app.group import run_group
from tests.app.test_secrets import FUZZ, MORE_KEYS, check, override
from tests.error_lines import error_line

# MLPerf v2: 97.4 GiB of tables of dimension 128, 214 ids a sample.
ROWS = list(PUBLISHED_TABLES["mlperf_v2"].values())
MLPERF = ["plan.num_embeddings=mlperf_v2", "data.multi_hot.sizes=mlperf_v2", "model.embedding_dim=128"]
MLPERF += ["model.dense_arch=[512,128]", "train.global_batch_size=65536"]


def planned(run_app: Command, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    run_app("plan", *overrides, f"plan.out={tmp_path / 'plan.json'}")
    return json.loads((tmp_path / "plan.json").read_bytes())


def test_one_device_has_every_row(run_app: Command, tmp_path: Path) -> None:
    keys = ["plan.num_embeddings=[50,7]", "model.embedding_dim=16", "topology=cpu", "topology.devices_per_node=1"]
    tables = planned(run_app, tmp_path, *keys)["tables"]
    assert [table["shards"] for table in tables.values()] == [[[0, 0, 0, 50, 16]], [[0, 0, 0, 7, 16]]]


@pytest.mark.slow("processes")
def test_mlperf_on_hardware_that_is_not_here(run_app: Command, tmp_path: Path) -> None:
    overrides = [*MLPERF, "topology=mi300x", "topology.devices_per_node=8", "optimizer=rowwise_adagrad"]
    plan = planned(run_app, tmp_path, *overrides, "plan.topologies=[h100]", "plan.devices=[1,8]")
    assert plan["world_size"] == 8
    assert set(plan["tables"]) == {f"t_cat_{number}" for number in range(26)}
    # Every row of every table is somewhere, once (or once on each rank), and memory is at least that of its values.
    parameter_bytes = [0] * 8
    for table, rows in zip(plan["tables"].values(), ROWS, strict=True):
        copies = 8 if table["type"] == "data_parallel" else 1
        assert sum(height * width for _, _, _, height, width in table["shards"]) == rows * 128 * copies
        for rank, _, _, height, width in table["shards"]:
            parameter_bytes[rank] += height * (width + 1) * 4  # row-wise Adagrad keeps one value a row
        assert table["reason"]
    for rank, least in zip(plan["ranks"], parameter_bytes, strict=True):
        assert least <= rank["device_bytes"] <= least + (1 << 30)
        assert rank["total_ms"] == pytest.approx(rank["lookup_ms"] + rank["communication_ms"])
    forecast = plan["forecast"]
    assert forecast["fits"]
    assert forecast["capacity_bytes"] == int(192 * 2**30 * 0.85)
    assert forecast["headroom_bytes"] == forecast["capacity_bytes"] - max(r["device_bytes"] for r in plan["ranks"])
    assert forecast["step_ms"] == max(rank["total_ms"] for rank in plan["ranks"])
    # What MI300X's memory buys: one device holds what takes two or more H100s.
    cases = {(case["topology"], case["world_size"]): case for case in plan["what_if"]}
    assert cases["mi300x", 1]["forecast"]["fits"]
    assert cases["h100", 1]["forecast"] is None
    assert "no plan fits: 26 tables of 97.4 GiB" in cases["h100", 1]["problem"]
    assert cases["h100", 8]["forecast"]["step_ms"] > cases["mi300x", 8]["forecast"]["step_ms"]


@pytest.mark.slow("processes")
def test_a_run_trains_by_a_plan(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    config = [*SMALL, f"data.path={dataset}", "run.name=x", "train.max_steps=20"]
    machine = ["topology=cpu", "topology.devices_per_node=2"]
    plan = planned(run_app, tmp_path, *config, *machine, "sharding.types=[row_wise,column_wise,data_parallel]")
    assert {row["name"]: row["num_embeddings"] for row in plan["tables"].values()} == {
        f"t_{name}": rows for name, rows in NUM_EMBEDDINGS.items()
    }
    alone, *_ = run_group([config], 1, tmp_path / "alone.json")
    pair, *_ = run_group([[*config, f"sharding.plan={tmp_path / 'plan.json'}"]], 2, tmp_path / "pair.json")
    np.testing.assert_allclose(pair["losses"], alone["losses"], rtol=1e-5)
    for name, table in pair["plan"]["tables"].items():
        assert table == {key: plan["tables"][name][key] for key in table}


@pytest.mark.slow("processes")
def test_a_plan_for_something_else_is_refused(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    config = [*SMALL, f"data.path={dataset}", "run.name=x", f"sharding.plan={tmp_path / 'plan.json'}"]
    sizes = json.dumps(list(NUM_EMBEDDINGS.values()))
    planned(run_app, tmp_path, f"plan.num_embeddings={sizes}", "topology=cpu", "topology.devices_per_node=2")
    for overrides, plan, message in (
        ([], ["topology.devices_per_node=2"], "made for 2 processes, but there are 1"),
        ([], ["plan.num_embeddings=[50,7,300]"], "made for other tables: the model has t_cat_3"),
        ([], ["plan.num_embeddings=[50,7,300,5]"], "t_cat_3: made for another table, of 5 rows; here it has 4 rows"),
        (["optimizer=rowwise_adagrad"], ["sharding=column_wise"], "sharding.plan=column_wise: rowwise_adagrad would"),
    ):
        planned(run_app, tmp_path, f"plan.num_embeddings={sizes}", "topology=cpu", "topology.devices_per_node=1", *plan)
        process = run_app("train", *config, *overrides, status=2)
        assert message in error_line(process.stderr)
    (tmp_path / "plan.json").write_text("{}")
    assert "not a plan of" in run_app("train", *config, status=2).stderr


@pytest.mark.slow("examples")
@FUZZ
@given(st.lists(override([*(key for key, *_ in keys_of(PlanAppConfig)), *MORE_KEYS]), min_size=1, max_size=3))
def test_any_line_ends_in_a_plan_or_one_error(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        check("plan", ["recipe=mlperf_v2", "runtime.platform=cpu", *arguments], Path(name))
