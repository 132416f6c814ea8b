"""The traffic of a step that a report computes, against a naive count of what processes send each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.record.documents import Device, Summary, TableSize
from app.report.page import about, figures, rank_loads, traffic
from app.report.read import read_run
from app.sharding.documents import PlannedTable
from common.documents import convert, plain_object
from tests.app.report.runs import PLANNED, write_run

ROWS, DIM, BATCH = 8, 16, 32
SHARDS = {
    "table_wise": [[1, 0, 0, ROWS, DIM]],
    "row_wise": [[rank, rank * 4, 0, 4, DIM] for rank in range(2)],
    "column_wise": [[rank, 0, rank * 8, ROWS, 8] for rank in range(2)],
    "data_parallel": [[rank, 0, 0, ROWS, DIM] for rank in range(2)],
}


def sent(kind: str, ids: int, by_id: bool, widths: tuple[int, int]) -> int:
    """Bytes between two processes: each sample's ids, one after another over the table's rows, from each shard."""
    if kind == "data_parallel":  # each process sends its half of the gradient, then the half of the sum that it made
        return 2 * 2 * ROWS * DIM * 4 // 2
    total, row = 0, 0
    for sample in range(BATCH):
        sample_rank = sample * 2 // BATCH
        rows = [(row + k) % ROWS for k in range(ids)]
        row += ids
        for rank, first, _, height, columns in SHARDS[kind]:
            if rank != sample_rank:
                vectors = sum(first <= one < first + height for one in rows) if by_id else 1
                total += vectors * columns * sum(widths)
    return total


@pytest.mark.parametrize(("qcomm", "widths"), [([], (4, 4)), (["forward=fp16"], (2, 4)), (["backward=bf16"], (4, 2))])
@pytest.mark.parametrize(("ids", "by_id"), [(1, False), (6, False), (6, True), (1, True)])
@pytest.mark.parametrize("kind", list(SHARDS))
def test_what_processes_exchange_is_counted(
    tmp_path: Path, kind: str, ids: int, by_id: bool, qcomm: list[str], widths: tuple[int, int]
) -> None:
    overrides = [f"train.global_batch_size={BATCH}", *(f"sharding.qcomm.{key}" for key in qcomm)]
    run = read_run(write_run(tmp_path / "a", *overrides, world_size=2))
    table: dict[str, Any] = {"features": 1, "ids_per_sample": float(ids), "num_embeddings": ROWS, "embedding_dim": DIM}
    table |= {"bytes": ROWS * DIM * 4, "by_id": by_id}
    plan = {**PLANNED, "type": kind, "shards": SHARDS[kind]}
    bytes_read, bytes_written, exchanged = traffic(run, convert(table, TableSize), convert(plan, PlannedTable))
    assert exchanged == sent(kind, ids, by_id, widths)
    assert (bytes_read, bytes_written) == (2 * BATCH * ids * DIM * 4, BATCH * ids * DIM * 4)


@pytest.mark.parametrize("kind", list(SHARDS))
def test_weights_of_a_rank_are_those_of_its_shards(tmp_path: Path, kind: str) -> None:
    run = read_run(write_run(tmp_path / "a", world_size=2))
    table: dict[str, Any] = {"features": 1, "ids_per_sample": 1.0, "num_embeddings": ROWS, "embedding_dim": DIM}
    table |= {"bytes": ROWS * DIM * 4, "by_id": False}
    plan = {**PLANNED, "type": kind, "shards": SHARDS[kind], "ranks": [shard[0] for shard in SHARDS[kind]]}
    run.manifest.tables, run.manifest.plan = {"t": convert(table, TableSize)}, {"t": convert(plan, PlannedTable)}
    expected = [[height * columns * 4 for rank, *_, height, columns in SHARDS[kind] if rank == own] for own in range(2)]
    assert [row[1:3] for row in rank_loads(run).rows] == [[str(len(each)), f"{sum(each)} B"] for each in expected]


def test_the_training_loss_says_of_how_many_steps_it_is(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "train.log_every_steps=20"))
    assert run.summary is not None
    run.summary = convert({**plain_object(run.summary), "covers": {"train": {"steps": 7}}}, Summary)
    assert "Train logloss, last 7 steps" in dict(figures(run).rows)


def test_energy_and_the_machine_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    summary = json.loads((path / "summary.json").read_text())
    summary["power"] = {"mean_watts": 120.0, "joules": 500.0, "source": "NVML"}
    (path / "summary.json").write_text(json.dumps(summary))
    run = read_run(path)
    rows = dict(figures(run).rows)
    assert (rows["Power joules"], rows["Power source"]) == ("500.0", "NVML")
    assert "Power mean watts" not in rows  # a chart shows it
    machine = dict(about(run))["Machine"]
    assert machine.startswith(f"1 × cpu ({run.manifest.hardware.cpu})")
    run.manifest.hardware.devices.append(Device(name="H200", memory_bytes=1, architecture="sm_90"))
    assert dict(about(run))["Machine"].startswith("1 × cpu (H200)")
