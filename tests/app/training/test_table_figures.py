"""Rows touched and norms of tables against NumPy over whole tables; the norm of gradients against steps of SGD."""

from pathlib import Path

import numpy as np
import pytest
import torch

from app.config.tables import Storage
from app.model import tables
from app.model.tables import TableInitRange, TableSpec, initial_rows
from app.training.recording import table_figures
from app.training.recording.table_figures import MAX_BLOCKS, TableMeter
from app.training.session import Session
from tests.app.conftest import Train
from tests.app.run_files import events, summary


def table(rows: int, dim: int = 4, storage: Storage = Storage.fp32) -> TableSpec:
    return TableSpec("t_a", ("a",), rows, dim, TableInitRange(-0.5, 0.5), storage, False, False)


@pytest.mark.parametrize("storage", [Storage.fp32, Storage.fp16])
@pytest.mark.parametrize("counts", [True, False])
def test_figures_are_those_of_the_whole_table(storage: Storage, counts: bool) -> None:
    rng = np.random.default_rng(0)
    spec = table(1000, storage=storage)
    values = initial_rows(7, spec, 0, 1000)
    if storage is Storage.fp16:
        values = values.astype(np.float16).astype(np.float32)
    values[rng.choice(1000, 123, replace=False), rng.integers(0, 4, 123)] += 1
    meter = TableMeter([spec], 7, counts)
    passed = list(meter.watch([("t_a", values[:300]), ("t_a", values[300:]), ("dense", values[:2])]))
    assert np.array_equal(np.concatenate(passed), np.concatenate([values, values[:2]]))
    figures = meter.figures()["t_a"]
    norms = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    assert (figures.rows, figures.rows_touched) == (1000, 123 if counts else None)
    assert figures.mean_norm == pytest.approx(norms.mean(), rel=1e-6)
    assert figures.largest_norm == pytest.approx(norms.max(), rel=1e-6)


def test_of_a_large_table_blocks_all_over_it_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tables, table_figures):
        monkeypatch.setattr(module, "INIT_BLOCK_ROWS", 10)
    spec = table(4003)
    values = initial_rows(1, spec, 0, 4003)
    values[::2] += 1
    meter = TableMeter([spec], 1, True)
    list(meter.watch([("t_a", values[start : start + 37]) for start in range(0, 4003, 37)]))
    figures = meter.figures()["t_a"]
    assert (figures.rows, figures.rows_touched) == (10 * MAX_BLOCKS, 5 * MAX_BLOCKS)


def test_an_epoch_touches_the_ids_of_its_rows(train: Train, dataset: Path) -> None:
    train("train.drop_last=false")
    ids = np.concatenate([np.load(path) for path in sorted((dataset / "train").glob("*.sparse.npy"))])
    expected = {f"t_cat_{place}": len(np.unique(ids[:, place])) for place in range(ids.shape[1])}
    figures = summary(Path("runs/x"))["tables"]
    assert {name: figures[name]["rows_touched"] for name in figures} == expected
    train("run.name=b", "optimizer.sparse_weight_decay=0.1", "train.max_steps=2")
    assert {entry["rows_touched"] for entry in summary(Path("runs/b"))["tables"].values()} == {None}


def test_the_gradients_norm_is_that_of_a_step_of_sgd(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the learning rate times the gradient."""
    before: list[torch.Tensor] = []
    begin = Session.begin_step

    def begun(self: Session, step: int) -> float:
        values = [each.detach().double().flatten() for each in self.dense_parameters().values()]
        before.append(torch.cat(values).clone())
        return begin(self, step)

    monkeypatch.setattr(Session, "begin_step", begun)
    train("optimizer=sgd", "optimizer.lr=0.5", "train.log_every_steps=2", "train.max_steps=7")
    norms = {event["step"]: event["gradient_norm"] for event in events(Path("runs/x"), "train")}
    assert list(norms) == [2, 4, 6, 7]
    for step in (2, 4, 6):
        assert norms[step] == pytest.approx(float((before[step - 1] - before[step]).norm()) / 0.5, rel=1e-3)
