"""The rows of an epoch that fill no whole batch, trained on: against NumPy's order of rows and a plain model."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from app.config.data import DataConfig
from app.config.train import TrainConfig, samples_of, steps_within
from app.data.split import SplitReader
from app.runtime.platform import Runtime
from app.training.state import run_length
from data_prep.dataset.format import load_manifest, shard_path
from tests.app import loops
from tests.app.conftest import SMALL, built
from tests.app.datasets import NUM_EMBEDDINGS, write_dataset
from tests.app.group import run_whole
from tests.app.run_files import events, losses, summary
from tests.app.training.test_field_models import EPS, SHAPES, Settings, naive
from tests.once import made_once
from tests.oracles.dlrm import Feature, OracleDLRM

BATCH, BLOCK, WINDOW = 64, 40, 2
ROWS = {"odd": 4 * BATCH + 45, "one": 2 * BATCH + 1, "none": 2 * BATCH, "few": 13, "almost": 3 * BATCH + 63}
EPOCHS = 2
CONFIG = DataConfig(shuffle_block_rows=BLOCK, shuffle_window_blocks=WINDOW)
LAST = ["train.drop_last=false", f"train.epochs={EPOCHS}", f"data.shuffle_block_rows={BLOCK}"]
LAST += [f"data.shuffle_window_blocks={WINDOW}", "record.tensorboard=false"]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    def make(directory: Path) -> None:
        for name, rows in ROWS.items():
            write_dataset(directory / name, {"train": rows, "val": 60, "test": 0}, shard_rows=100)

    directory = made_once(tmp_path_factory, "last_batches", make)
    return {name: directory / name for name in ROWS}


def plain_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Blocks in a drawn order, and rows in a drawn order inside each window of consecutive ones."""
    starts = np.arange(0, rows, BLOCK)
    np.random.default_rng([seed, epoch, 0]).shuffle(starts)
    order = []
    for number in range(-(-len(starts) // WINDOW)):
        blocks = starts[number * WINDOW : (number + 1) * WINDOW]
        of_window = np.concatenate([np.arange(start, min(start + BLOCK, rows)) for start in blocks])
        places = np.arange(len(of_window))
        np.random.default_rng([seed, epoch, 1 + number]).shuffle(places)
        order.append(of_window[places])
    return np.concatenate(order)


def plain_batches(rows: int, seed: int, epoch: int) -> list[list[int]]:
    order = plain_order(rows, seed, epoch).tolist()
    return [order[start : start + BATCH] for start in range(0, rows, BATCH)]


def read_batches(root: Path, rank: int = 0, processes: int = 1, lanes: int = 1, first: int = 0) -> list[list[int]]:
    """The rows of each of an epoch's batches, known from dense feature 0, without what is padded."""
    config = replace(CONFIG, shuffle_lanes=lanes)
    split = SplitReader(root, load_manifest(root), "train", config, rank, processes, drop_last=False)
    batches = []
    for batch in split.train_batches(BATCH, 3, 1, first):
        numbers = np.rint(batch.dense_features[:, 0].numpy() * split.rows).astype(int).tolist()
        assert len(batch.labels) == len(numbers)
        assert len(set(numbers)) >= min(batch.num_valid, 1)
        batches.append(numbers[: batch.num_valid])
    return batches


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("name", ROWS)
def test_batches_are_numpys(name: str, processes: int, roots: dict[str, Path]) -> None:
    parts = [read_batches(roots[name], rank, processes) for rank in range(processes)]
    together = [list(itertools.chain(*batch)) for batch in zip(*parts, strict=True)]
    assert together == plain_batches(ROWS[name], 3, 1)


@pytest.mark.parametrize("lanes", [3, 8])
def test_lanes_lose_no_row(lanes: int, roots: dict[str, Path]) -> None:
    for name, rows in ROWS.items():
        alone = read_batches(roots[name], lanes=lanes)
        parts = [read_batches(roots[name], rank, 2, lanes) for rank in range(2)]
        assert [first + second for first, second in zip(*parts, strict=True)] == alone
        assert [len(batch) for batch in alone] == [len(batch) for batch in plain_batches(rows, 3, 1)]
        assert sorted(itertools.chain(*alone)) == list(range(rows))
        data = replace(CONFIG, shuffle_lanes=lanes)
        whole = SplitReader(roots[name], load_manifest(roots[name]), "train", data, 0, 1)
        assert len(list(whole.train_batches(BATCH, 3, 1, 0))) == rows // BATCH  # as ever


@pytest.mark.parametrize("first", range(7))
def test_the_rest_of_an_epoch(first: int, roots: dict[str, Path]) -> None:
    assert read_batches(roots["odd"], first=first) == plain_batches(ROWS["odd"], 3, 1)[first:]


def test_padding_repeats_a_row_of_the_batch(roots: dict[str, Path]) -> None:
    """Of sharded tables parts are equal; a row of a table that the batch does not have is never touched."""
    for name in ("odd", "one"):
        parts = []
        for rank in range(2):
            split = SplitReader(roots[name], load_manifest(roots[name]), "train", CONFIG, rank, 2, drop_last=False)
            parts.append(list(split.train_batches(BATCH, 3, 1, 0))[-1])
        remainder = ROWS[name] % BATCH
        assert [len(part.labels) for part in parts] == [-(-remainder // 2)] * 2
        assert sum(part.num_valid for part in parts) == remainder
        assert sum(part.share for part in parts) == pytest.approx(2)
        last = np.rint(parts[1].dense_features[:, 0].numpy() * ROWS[name]).astype(int)
        assert set(last[parts[1].num_valid :]) == {plain_batches(ROWS[name], 3, 1)[-1][-1]}


def arrays_of(root: Path) -> list[NDArray[np.generic]]:
    """Labels, dense and sparse features of the train split."""
    shards = load_manifest(root).splits["train"].shards
    return [
        np.concatenate([np.load(shard_path(root, "train", shard.name, kind)) for shard in shards])
        for kind in ("labels", "dense", "sparse")
    ]


def plain_losses(root: Path, runtime: Runtime, overrides: list[str]) -> list[float]:
    """Of the plain model in float64, from the same initial values, over all epochs."""
    this = built(runtime, root, *overrides)
    config = this.config
    parameters = {name: torch.from_numpy(np.array(values)) for name, values in this.parameters()}
    features = {one.features[0]: Feature([one.tables[0].name]) for one in this.model.module.sparse_arch.embeddings}
    rows = load_manifest(root).splits["train"].rows
    steps, optimizer = EPOCHS * -(-rows // BATCH), config.optimizer
    settings = (optimizer.name.value, optimizer.eps or 0.0, (optimizer.beta1 or 0.9, optimizer.beta2 or 0.999))
    oracle = OracleDLRM(parameters, features, "dot", [optimizer.lr] * steps, [optimizer.table_lr] * steps, *settings)
    labels, dense, sparse = (torch.from_numpy(array) for array in arrays_of(root))
    for epoch in range(EPOCHS):
        for batch in plain_batches(rows, config.train.seed, epoch):
            bags = {name: [ids[i : i + 1].long() for ids in sparse[batch]] for i, name in enumerate(NUM_EMBEDDINGS)}
            oracle.step(dense[batch], bags, labels[batch, 0].float())
    return oracle.losses


def model(optimizer: str) -> list[str]:
    """Overrides of a model that the plain one repeats."""
    overrides = [*SMALL, *LAST, f"optimizer={optimizer}", "optimizer.lr=0.01", "optimizer.sparse_lr=0.02"]
    overrides += ["model.interaction=dot", "train.eval_every_fraction=1", "train.eval_every_steps=null"]
    return overrides if optimizer == "sgd" else [*overrides, "optimizer.eps=1e-3"]


@pytest.mark.parametrize(
    ("name", "optimizer"), [("odd", "adam"), pytest.param("few", "rowwise_adagrad", marks=pytest.mark.slow)]
)
def test_steps_are_the_plain_models(name: str, optimizer: str, runtime: Runtime, roots: dict[str, Path]) -> None:
    root, overrides = roots[name], model(optimizer)
    this = built(runtime, root, *overrides)
    losses_of_steps: list[float] = []
    for epoch in range(EPOCHS):
        for batch in this.predictor.split("train").train_batches(BATCH, this.config.train.seed, epoch, 0):
            losses_of_steps.append(loops.step(this, batch, len(losses_of_steps)))
    np.testing.assert_allclose(losses_of_steps, plain_losses(root, runtime, overrides), rtol=3e-5)
    assert this.predictor.samples(len(losses_of_steps)) == EPOCHS * ROWS[name]


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    ("name", "optimizer", "processes"),
    [("odd", "adam", 1), ("one", "adam", 2), ("few", "rowwise_adagrad", 2), ("none", "adam", 1), ("odd", "sgd", 4)],
)
def test_losses_are_the_plain_models(
    name: str, optimizer: str, processes: int, runtime: Runtime, roots: dict[str, Path], tmp_path: Path
) -> None:
    overrides = [*model(optimizer), "sharding.types=row_wise"]
    run = [*overrides, "run.name=x", f"run.dir={tmp_path}/run", f"data.path={roots[name]}"]
    run_whole([run], processes, tmp_path / "results.json")
    expected = plain_losses(roots[name], runtime, overrides)
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, rtol=3e-5)
    epoch_steps = -(-ROWS[name] // BATCH)
    assert [event["step"] for event in events(tmp_path / "run", "eval")] == [epoch_steps, 2 * epoch_steps]
    figures = summary(tmp_path / "run")
    assert (figures["steps"], figures["samples"]) == (2 * epoch_steps, 2 * ROWS[name])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "processes"),
    [("almost", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in [("few", 2), ("odd", 4)])],
)
def test_batch_norm_is_of_real_rows(
    name: str, processes: int, runtime: Runtime, roots: dict[str, Path], tmp_path: Path
) -> None:
    """Also where padding makes the last batch as large as the others: 63 rows on two processes, 32 each."""
    settings = Settings(batch_norm=True)
    overrides = [*SMALL, *LAST, *SHAPES["dlrm"], *settings.overrides(), "optimizer=adam", "optimizer.lr=0.01"]
    overrides += [f"optimizer.eps={EPS}", "model.embedding_dim=10", "model.dense_init=xavier_normal"]
    overrides += ["run.name=x", f"run.dir={tmp_path}/run", f"data.path={roots[name]}"]
    this = built(runtime, roots[name], *overrides)
    oracle = naive("dlrm", settings, this)
    labels, dense, sparse = (torch.from_numpy(array) for array in arrays_of(roots[name]))
    expected: list[float] = []
    for epoch in range(EPOCHS):
        for batch in plain_batches(ROWS[name], this.config.train.seed, epoch):
            expected.append(oracle.step(dense[batch], sparse[batch].long(), labels[batch, 0], len(expected)))
    run_whole([overrides], processes, tmp_path / "results.json")
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, rtol=2e-5)


@pytest.mark.parametrize("drop_last", [True, False])
def test_samples_of_steps(drop_last: bool, roots: dict[str, Path]) -> None:
    rows, train = ROWS["odd"], TrainConfig(global_batch_size=BATCH, drop_last=drop_last, epochs=3)
    sizes = [BATCH] * 4 + ([] if drop_last else [45])
    sample_counts = [0, *itertools.accumulate(sizes * 3)]
    assert [samples_of(train, rows, step) for step in range(len(sample_counts))] == sample_counts
    for samples in range(0, sample_counts[-1] + 1, 7):
        expected = max(step for step, count in enumerate(sample_counts) if count <= samples)
        assert steps_within(train, rows, samples) == expected
    split = SplitReader(roots["odd"], load_manifest(roots["odd"]), "train", CONFIG, 0, 1, drop_last)
    assert run_length(train, split, 1).total_steps == 3 * len(sizes)
