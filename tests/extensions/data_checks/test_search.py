"""Data that mislead: planted faults are named, sound tables are not, and figures are those of plain loops."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from common.errors import UserError
from data_prep.dataset import format as dataset_format
from data_prep.dataset.format import Manifest, load_manifest, open_shard
from data_prep.dataset.kinds import misleading_sentences
from extensions.data_checks import search
from tests.app.data.test_bags import splitmix64
from tests.data_prep.conftest import prepare, seeds, sums
from tests.data_prep.tables import paths

SCHEMA = "label: label\ndense: [price, age]\nsparse: [user, item, shop]\n"
FRACTION = "data.split.method=fraction"


def table(seed: int, rows: int = 6_000) -> pd.DataFrame:
    """A sound table: skewed ids, of which items and prices have an effect on the label."""
    rng = np.random.default_rng(seed)
    item = rng.zipf(1.4, rows) % 300
    price = rng.lognormal(size=rows).round(3)
    logits = rng.normal(size=300)[item] + 0.3 * np.log(price) - rng.uniform(0, 3)
    columns = {"price": price, "age": rng.integers(18, 80, rows), "user": rng.integers(0, 700, rows), "item": item}
    columns |= {"shop": item % 17}
    return pd.DataFrame({"label": (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(int), **columns})


def prepared(directory: Path, rows: pd.DataFrame, *overrides: str, schema: str = SCHEMA) -> Manifest:
    rows.to_csv(directory / "rows.csv", index=False)
    return prepare(*paths(directory, schema), *overrides)


def leaking(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(shop=np.where((rows.label == 1) & (np.arange(len(rows)) % 50 > 0), "bought", "looked"))


def leaking_number(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(age=rows.label + np.random.default_rng(1).normal(0, 0.1, len(rows)))


def overlapping(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows[:-300], rows[:300]])  # the last tenth of the file is held out


def doubled(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows, rows[::5]])


@pytest.mark.parametrize(
    ("plant", "overrides", "words"),
    [
        (leaking, [], ["one column alone", "shop (0.9"]),
        (leaking_number, [], ["one column alone", "age ("]),
        (overlapping, [FRACTION], ["are in train, whole"]),
        (doubled, [], ["are in train, whole"]),
    ],
)
def test_a_planted_fault_is_named_alone(
    plant: Callable[[pd.DataFrame], pd.DataFrame],
    overrides: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = prepared(tmp_path, plant(table(0)), *overrides)
    (sentence,) = misleading_sentences(manifest.extra)
    assert all(word in sentence for word in words), sentence
    assert f"{tmp_path}/out: warning: {sentence}\n" in capsys.readouterr().err
    assert misleading_sentences(load_manifest(tmp_path / "out").extra) == [sentence]


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_a_sound_table_is_passed_in_silence(seed: int, tmp_path: Path) -> None:
    method = ["random", "fraction", "scikit_learn"][seed % 3]
    manifest = prepared(tmp_path, table(seed, rows=500 * 2 ** (seed % 5)), f"data.split.method={method}")
    assert misleading_sentences(manifest.extra) == []
    assert manifest.extra["misleading"]["shared_rows"] == 0


def of_users_and_cities(rng: np.random.Generator) -> pd.DataFrame:
    """The most various column, the user, decides the next, the city; what was bought is free of both."""
    user = rng.integers(0, 900, 6_000)
    other_columns = {f"of_{size}": rng.integers(0, size, len(user)) for size in (50, 40, 30)}
    return pd.DataFrame({"user": user, "city": user % 300, **other_columns})


def of_few_values(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(rng.integers(0, 8, (6_000, 12))).add_prefix("c")


@pytest.mark.parametrize("make", [of_users_and_cities, of_few_values])
@pytest.mark.parametrize("copied", [0, 300])
def test_copied_rows_are_named_whatever_the_columns(
    make: Callable[[np.random.Generator], pd.DataFrame], copied: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(7)
    rows = make(rng).assign(label=rng.integers(0, 2, 6_000))
    rows = pd.concat([rows, rows[:copied]])  # the last tenth of the file is held out
    schema = f"label: label\nsparse: [{', '.join(rows.columns[:-1])}]\n"
    manifest = prepared(tmp_path, rows, FRACTION, schema=schema)
    figures = manifest.extra["misleading"]
    assert figures["shared_by_chance"] < 0.01
    held_out = sum(manifest.splits[split].rows for split in ("val", "test"))
    assert figures["shared_rows"] == pytest.approx(copied / held_out, abs=0.01)
    assert len(misleading_sentences(manifest.extra)) == (copied > 0)


def out_of_fold_rates(ids: NDArray[Any], labels: NDArray[Any]) -> list[float]:
    """A row's rate is of the other fold's rows of its id, with ten rows at the base rate."""
    folds = [splitmix64(row) % 2 for row in range(len(ids))]
    rows, positives = Counter[Any](), Counter[Any]()
    for fold, one, label in zip(folds, ids, labels, strict=True):
        rows[1 - fold, one] += 1
        positives[1 - fold, one] += int(label)
    base = float(labels.mean())
    return [(positives[key] + 10 * base) / (rows[key] + 10) for key in zip(folds, ids, strict=True)]


def sampled_arrays(root: Path, splits: tuple[str, ...], share: float) -> list[NDArray[Any]]:
    """labels [rows], dense, sparse of the rows of some splits that are looked at."""
    manifest = load_manifest(root)
    parts = []
    shards = [(split, shard) for split in splits for shard in manifest.splits[split].shards]
    for number, (split, shard) in enumerate(shards):
        arrays = open_shard(root, split, shard, manifest)
        blocks = dataset_format.sampled_blocks(shard.rows, share, number, search.BLOCK_ROWS)
        rows = [row for start, stop in blocks for row in range(start, stop)]
        parts.append((arrays.labels[rows, 0], arrays.dense[rows], arrays.sparse[rows]))
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


@pytest.mark.parametrize(
    "constants",
    [{}, {"COLUMNS": 2, "BLOCK_ROWS": 100}, {"COLUMNS": 1, "BLOCK_ROWS": 10, "MAX_ROWS": 4_000, "IDS_PER_ROW": 0}],
)
def test_figures_are_those_of_plain_loops(
    constants: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in constants.items():
        monkeypatch.setattr(search, name, value)
    manifest = prepared(tmp_path, doubled(table(5)))
    num_train, num_held = (
        sum(manifest.splits[split].rows for split in splits) for splits in (("train",), ("val", "test"))
    )
    limit = min(search.MAX_ROWS, num_train + num_held)
    assert num_held < limit / 2  # so that all are looked at
    share = (limit - num_held) / num_train
    labels, dense, sparse = sampled_arrays(tmp_path / "out", ("train",), share)
    held_out = sampled_arrays(tmp_path / "out", ("val", "test"), 1.0)
    figures = manifest.extra["misleading"]
    assert figures["rows"] == len(labels) + len(held_out[0])
    for number, name in enumerate(manifest.schema["sparse"]):
        auc = roc_auc_score(labels, out_of_fold_rates(sparse[:, number], labels))
        assert figures["columns"][name]["auc"] == pytest.approx(auc, abs=1e-4)

    # Whole rows, by sets.
    train_rows = {(*a, *b, c) for c, a, b in zip(labels.tolist(), dense.tolist(), sparse.tolist(), strict=True)}
    rows = [(*a, *b, c) for c, a, b in zip(*(values.tolist() for values in held_out), strict=True)]
    share_read = len(labels) / num_train
    assert figures["shared_rows"] == pytest.approx(np.mean([row in train_rows for row in rows]) / share_read)


@pytest.mark.medium
def test_beyond_the_limit_a_sample_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = leaking(overlapping(table(0, rows=12_000)))
    (tmp_path / "whole").mkdir()
    whole = prepared(tmp_path / "whole", faults, FRACTION)
    (tmp_path / "sample").mkdir()
    monkeypatch.setattr(search, "MAX_ROWS", 6_000)
    monkeypatch.setattr(search, "BLOCK_ROWS", 8)  # of which a small table has enough
    some = prepared(tmp_path / "sample", faults, FRACTION)
    assert sums(tmp_path / "whole/out") == sums(tmp_path / "sample/out")
    assert whole.digest == some.digest
    figures, exact = some.extra["misleading"], whole.extra["misleading"]
    assert 4_000 < figures["rows"] < 8_000
    assert figures["of"] == 12_000
    assert figures["shared_rows"] == pytest.approx(exact["shared_rows"], rel=0.5)
    sentences = misleading_sentences(some.extra)
    assert len(sentences) == len(misleading_sentences(whole.extra)) == 2
    assert all(f"by a sample of {figures['rows']:,} of 12,000 rows" in sentence for sentence in sentences)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("column", "words"), [("price", (9.5, 0.5)), ("shop", ("bought", "looked")), ("tags", ("a|b", "a"))]
)
def test_the_label_under_another_name_is_refused(column: str, words: tuple[Any, Any], tmp_path: Path) -> None:
    rows = table(4).assign(tags="a|c")
    rows[column] = np.where(rows.label == 1, *words)
    schema = SCHEMA.replace("shop]", 'shop, {column: tags, separator: "|"}]')
    with pytest.raises(UserError, match=rf"data.schema: {column} tells the label of each of \d,\d+ rows by itself"):
        prepared(tmp_path, rows, schema=schema)
    assert not (tmp_path / "out/manifest.json").exists()
    entry = {"price": "price, ", "shop": "shop, ", "tags": ', {column: tags, separator: "|"}'}[column]
    assert prepared(tmp_path, rows, schema=schema.replace(entry, "")).schema["dense"]  # the remedy
