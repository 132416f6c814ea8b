"""A run of the extension sequences beside the commands of plan and export."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import Command, Refusal
from tests.app.run_files import losses
from tests.extensions.sequences.test_commands import TINY
from tests.extensions.sequences.test_commands import log as log
from tests.extensions.sequences.test_commands import trained as trained

NOWHERE = ["model=hstu", "data.path=nowhere"]


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NOWHERE], "nowhere is not a dataset; give mlperf_v4, or data.path of events"),
        ([*NOWHERE, "plan.num_embeddings=[7]"], "rows alone are no tables of events"),
        ([*NOWHERE, "plan.num_embeddings=mlperf_v2"], "mlperf_v2: of rows, which model=hstu does not"),
        (["data.path={log}"], "holds events, not rows; give model=hstu"),
    ],
)
def test_what_a_plan_cannot_be_of_is_refused(arguments: list[str], message: str, refused: Refusal, log: Path) -> None:
    assert message in refused("plan", *(each.format(log=log) for each in arguments))


def test_an_export_is_of_dlrm_alone(refused: Refusal, trained: Path) -> None:
    assert "is for DLRM alone so far" in refused("export", f"run={trained}", "out=x.pt2")
