"""Importances and slices against plain loops of NumPy over a tiny model's own arithmetic."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score

from app.checkpoint.files import find_checkpoint
from app.runtime.platform import Runtime
from app.sharding.plan import table_blocks, table_weights
from app.training import predictor
from data_prep.dataset.format import Manifest, load_manifest, open_shard, sampled_row_numbers
from tests.app.conftest import composed
from tests.app.in_process import command_here, train_here
from tests.data_prep.conftest import prepare
from tests.once import made_once

ROWS = 1_500
KEYS = ["model=dlrm", "model.embedding_dim=4", "model.dense_arch=[]", "model.interaction=cat", "model.over_arch=[1]"]
KEYS += ["runtime.num_threads=1", "train.global_batch_size=100", "optimizer=adam", "optimizer.lr=0.05", "run.name=x"]
KEYS += ["train.epochs=3", "record.tensorboard=false", "baselines=false", "checkpoint.keep_best=false"]


def make_data(directory: Path) -> None:
    """Write clicks that follow the user most, then the tags, and not the item at all."""
    rng = np.random.default_rng(0)
    users, items, tags = rng.integers(0, 30, ROWS), rng.integers(0, 5, ROWS), rng.random((ROWS, 6)) < 0.3
    odds = 2 * rng.normal(size=30)[users] + tags @ rng.normal(size=6)
    clicks, weights = (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(int), rng.choice([0.5, 2], ROWS)
    texts = ["|".join(f"t{place}" for place in np.flatnonzero(row)) for row in tags]
    lines = [",".join(map(str, row)) for row in zip(users, items, texts, clicks, weights, strict=True)]
    (directory / "clicks.csv").write_text("\n".join(["user,item,tags,click,weight", *lines, ""]))
    schema = "label: click\nsparse: [user, {column: tags, separator: '|'}, item]\nweight: weight\n"
    (directory / "clicks.yaml").write_text(schema)
    keys = [f"data.raw={directory}/clicks.csv", f"data.schema={directory}/clicks.yaml", f"data.path={directory}/data"]
    prepare(*keys, "data.split.method=random", "data.split.held_out=0.4")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "importance", make_data) / "data"


@pytest.fixture
def run(runtime: Runtime, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    train_here(runtime, *KEYS, f"data.path={data}")
    return tmp_path / "runs/x"


class Table(NamedTuple):
    """Rows of the test split, a row each, and the sum of vectors and weights that scores one."""

    labels: NDArray[Any]
    weights: NDArray[Any]
    columns: dict[str, list[list[int]]]
    vectors: dict[str, NDArray[Any]]
    bias: float

    def logits(self, columns: dict[str, list[list[int]]]) -> NDArray[np.float64]:
        """Score rows by the contribution of each id."""
        sums = [
            self.bias + sum(self.vectors[name][number] for name, bags in columns.items() for number in bags[row])
            for row in range(len(self.labels))
        ]
        return np.array(sums, np.float64)


def table_of(runtime: Runtime, run: Path, data: Path, manifest: Manifest) -> Table:
    config = composed(*KEYS, f"data.path={data}")
    scorer = predictor.load(find_checkpoint(run, None), config, runtime, data, manifest)
    layers = {name: each.detach().numpy() for name, each in scorer.model.named_parameters() if "over_arch" in name}
    [weight] = (each[0].astype(np.float64) for each in layers.values() if each.ndim == 2)
    [bias] = (float(each[0]) for each in layers.values() if each.ndim == 1)
    tables = {name.removeprefix("t_"): next(table_blocks(each)).numpy() for name, each in table_weights(scorer.model)}
    vectors = {
        name: tables[name] @ weight[4 * place : 4 * place + 4] for place, name in enumerate(manifest.num_embeddings)
    }
    [shard] = (open_shard(data, "test", shard, manifest) for shard in manifest.splits["test"].shards)
    [tags] = shard.bags
    columns = {
        "user": [[int(row[0])] for row in shard.sparse],
        "tags": [tags.ids[start:stop].tolist() for start, stop in zip(tags.offsets, tags.offsets[1:], strict=False)],
        "item": [[int(row[1])] for row in shard.sparse],
    }
    assert shard.weights is not None
    return Table(shard.labels[:, 0], shard.weights[:, 0], columns, vectors, bias)


@pytest.mark.medium
def test_losses_and_slices_are_those_of_plain_loops(
    runtime: Runtime, data: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = load_manifest(data)
    table = table_of(runtime, run, data, manifest)
    keys = [f"run={run}", "split=test", "repeats=3", "seed=7"]
    capsys.readouterr()
    command_here(runtime, "importance", *keys, "slices=[user]")
    printed = capsys.readouterr().out
    figures = json.loads(printed)
    assert json.loads((run / "importance.json").read_text()) == figures

    def auc(columns: dict[str, list[list[int]]]) -> float:
        return float(roc_auc_score(table.labels, table.logits(columns), sample_weight=table.weights))

    assert (figures["rows"], figures["metric"]) == (len(table.labels), "auc")
    assert figures["value"] == pytest.approx(auc(table.columns), abs=1e-6)
    for feature in figures["features"]:
        losses = []
        for number in range(3):
            order = np.random.default_rng([7, number]).permutation(len(table.labels))
            values = [table.columns[feature["name"]][place] for place in order]
            losses.append(auc(table.columns) - auc({**table.columns, feature["name"]: values}))
        interval = stats.t.interval(0.95, 2, np.mean(losses), stats.sem(losses))
        assert [feature["loss"], feature["low"], feature["high"]] == pytest.approx(
            [np.mean(losses), *interval], abs=1e-6
        )
        known = manifest.extra["out_of_vocabulary"]["test"][feature["name"]]
        assert feature["unknown"] == pytest.approx(known / sum(map(len, table.columns[feature["name"]])))
        assert feature["norm"] > 0
    assert [feature["name"] for feature in figures["features"]] == ["user", "tags", "item"]

    texts = [line.split(",") for line in (data.parent / "clicks.csv").read_text().splitlines()[1:]]
    assert {entry["value"] for entry in figures["slices"]["user"]} <= {*(text[0] for text in texts), "all other values"}
    counts = [entry["samples"] for entry in figures["slices"]["user"][:-1]]
    assert (len(counts), counts) == (20, sorted(counts, reverse=True))
    assert sum(counts) + figures["slices"]["user"][-1]["samples"] == len(table.labels)
    logits = table.logits(table.columns)
    ids = np.array(table.columns["user"])[:, 0]
    by_rows = {int(number): ids == number for number in ids}
    expected = [
        log_loss(table.labels[rows], 1 / (1 + np.exp(-logits[rows])), sample_weight=table.weights[rows], labels=[0, 1])
        for _, rows in sorted(by_rows.items(), key=lambda each: (-each[1].sum(), each[0]))
    ]
    assert [entry["logloss"] for entry in figures["slices"]["user"][:-1]] == pytest.approx(expected[:20], rel=1e-5)

    page = (run / "report.html").read_text()
    assert f"What mattered: AUC lost without each feature ({len(ids)} of {len(ids)} rows of test" in page
    assert "Metrics by value of user" in page
    command_here(runtime, "importance", *keys, "slices=[user]")
    assert capsys.readouterr().out == printed


def test_a_bound_of_rows_or_time_is_named(
    runtime: Runtime, data: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command_here(runtime, "importance", f"run={run}", "rows=300", "split=train", "seconds=1e-9")
    figures = json.loads(capsys.readouterr().out)
    shards = [shard.rows for shard in load_manifest(data).splits["train"].shards]
    assert figures["rows"] == len(sampled_row_numbers(shards, 300)) <= 300 < figures["of_rows"]
    assert (figures["features"], figures["missing"]) == ([], ["user", "tags", "item"])
    assert (run / "report.html").read_text().count("no time left") == 3
