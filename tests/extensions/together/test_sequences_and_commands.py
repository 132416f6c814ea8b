"""A run of the extension sequences beside the commands of plan and export."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import Command, Refusal
from tests.app.run_files import losses
from tests.extensions.plan.test_plan import check_width, planned
from tests.extensions.sequences.test_commands import TINY
from tests.extensions.sequences.test_commands import log as log
from tests.extensions.sequences.test_commands import trained as trained

NOWHERE = ["model=hstu", "data.path=nowhere"]


@pytest.mark.slow("processes")
def test_two_processes_train_by_a_plan(run_app: Command, log: Path, tmp_path: Path) -> None:
    overrides = [*TINY, f"data.path={log}", "train.max_steps=3"]
    hardware = ["topology=cpu", "topology.devices_per_node=2", "sharding.types=[table_wise,row_wise]"]
    process = run_app("plan", *overrides, *hardware, "plan.out=plan.json")
    assert "note: every history is taken to have 15 events" in process.stdout
    planned = json.loads((tmp_path / "plan.json").read_bytes())
    sizes = json.loads((log / "manifest.json").read_bytes())["num_embeddings"]
    assert {name: table["num_embeddings"] for name, table in planned["tables"].items()} == sizes
    run_app("train", *overrides, "sharding.plan=plan.json", "run.name=pair", processes=2)
    run_app("train", *overrides, "run.name=alone")
    actual, expected = (losses(tmp_path / "runs" / name) for name in ("pair", "alone"))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.slow("processes")
def test_dlrm_v4_on_hardware_that_is_not_here(run_app: Command, tmp_path: Path) -> None:
    """Tables looked up id by id: their rows go to the processes whose samples have the ids, each for itself."""
    fit, too_small = ["mi355x", "h200", "b200", "b300", "gb300"], ["h100"]
    plan = planned(
        run_app,
        tmp_path,
        "recipe=mlperf_v4",
        "topology=mi300x",
        "topology.devices_per_node=8",
        f"plan.topologies=[{','.join(fit + too_small)}]",
    )
    shards = [shard for table in plan["tables"].values() for shard in table["shards"]]
    assert sum(height * width * 4 for *_, height, width in shards) == 293_051_712 * 512 * 4
    # A value of the optimizer's a row, and the rows of 1,024 samples of 4,086 events and a candidate each.
    rows_of_a_batch = 1024 * (3 * (4086 + 1) + 8) * 512 * 4
    for rank in plan["ranks"]:
        table_bytes = sum(height * (width + 1) * 4 for owner, _, _, height, width in shards if owner == rank["rank"])
        assert table_bytes + rows_of_a_batch <= rank["device_bytes"] <= table_bytes + rows_of_a_batch + (1 << 30)
    # A process sends an eighth of all rows to the others and gets as many gradients, at 0.8 of 448 GB/s.
    sent_ms = 8192 * (4086 + 1) / 8 * 512 * 4 / (0.8 * 448e6)
    for name in ("item", "artist", "album"):
        assert plan["tables"][name]["type"] == "row_wise"
        assert 2 * sent_ms < plan["tables"][name]["communication_ms"] < 2.3 * sent_ms
    cases = {case["topology"]: case for case in plan["what_if"]}
    assert all(cases[name]["forecast"]["fits"] for name in ("mi300x", *fit))
    assert "no plan fits: 11 tables of 559.0 GiB" in cases["h100"]["problem"]
    assert "4,086 events" in plan["notes"][0]
    assert "attention, the dense layers and their memory are not estimated" in plan["notes"][2]


@pytest.mark.slow("processes")
def test_a_plan_of_dlrm_v4_fits_the_terminal(run_app: Command, tmp_path: Path) -> None:
    overrides = "recipe=mlperf_v4 topology=mi300x topology.devices_per_node=8 plan.topologies=[b200,gb300,h100]"
    check_width(overrides, run_app, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NOWHERE], "nowhere: no dataset to plan for; give data.path of events or plan.num_embeddings=mlperf_v4"),
        ([*NOWHERE, "plan.num_embeddings=[7]"], "rows alone are no tables of events"),
        ([*NOWHERE, "plan.num_embeddings=mlperf_v2"], "mlperf_v2: of rows, which model=hstu does not"),
        (["data.path={log}"], "holds events, not rows; give model=hstu"),
    ],
)
def test_what_a_plan_cannot_be_of_is_refused(
    arguments: list[str], message: str, refused_command: Refusal, log: Path
) -> None:
    assert message in refused_command("plan", *(each.format(log=log) for each in arguments))


def test_an_export_is_of_dlrm_alone(refused_command: Refusal, trained: Path) -> None:
    message = refused_command("export", f"run={trained}", "out=x")
    assert "export is for DLRM alone so far; train, evaluate, recommend" in message
