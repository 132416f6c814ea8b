"""Labels that are numbers: stored as they are, from each form of file."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import UserError
from data_prep.dataset.format import load_manifest, open_shard, shard_path
from data_prep.dataset.options import LabelKind
from data_prep.encoding.encoder import Encoder
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import config, run

SCHEMA = "label: {column: rating, kind: number}\nsparse: [user, item]\n"
DELIMITERS = {"csv": ",", "tsv": "\t"}


Columns = dict[str, list[Any]]


def ratings(rows: int) -> Columns:
    rng = np.random.default_rng(0)
    return {
        "user": rng.integers(0, 20, rows).astype(str).tolist(),
        "item": rng.integers(0, 30, rows).astype(str).tolist(),
        "rating": (rng.integers(-20, 50, rows) / 8).tolist(),
    }


def write(path: Path, columns: Columns) -> None:
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=DELIMITERS[path.suffix[1:]]).writerows([[*columns], *rows])


def overrides(directory: Path, suffix: str, *extra_overrides: str) -> list[str]:
    delimiter = 'delimiter: "\\t"\n' if suffix == "tsv" else ""
    (directory / "schema.yaml").write_text(delimiter + SCHEMA)
    paths = [f"data.raw={directory}/rows.{suffix}", f"data.schema={directory}/schema.yaml"]
    return [*paths, f"data.path={directory}/out", "data.split.method=fraction", *extra_overrides]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_labels_are_stored_as_they_are(tmp_path: Path, suffix: str) -> None:
    columns = ratings(140)
    write(tmp_path / f"rows.{suffix}", columns)
    preprocess(config(*overrides(tmp_path, suffix)))
    manifest = load_manifest(tmp_path / "out")
    assert manifest.label_kind is LabelKind.number
    assert manifest.label_rate is None
    assert all(split.label_rate is None for split in manifest.splits.values())
    shards = [(name, shard) for name, split in manifest.splits.items() for shard in split.shards]
    stored = [open_shard(tmp_path / "out", name, shard, manifest).labels for name, shard in shards]
    assert {labels.dtype for labels in stored} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(np.concatenate(stored)[:, 0], np.array(columns["rating"], np.float32))
    verify_dataset(tmp_path / "out")
    block = Encoder.load(tmp_path / "out").parse_columns({"user": ["1"], "item": ["2"]}, "request")
    assert block.labels.tolist() == [0.0]


def test_rows_that_move_keep_their_labels(tmp_path: Path) -> None:
    """A row's label is a function of its user and item, so wherever it goes the three must fit."""
    pairs = [(user, item) for user in range(1, 30) for item in range(1, 20)]
    columns: Columns = {
        "user": [str(user) for user, _ in pairs],
        "item": [str(item) for _, item in pairs],
        "rating": [user + item / 32 for user, item in pairs],
    }
    write(tmp_path / "rows.csv", columns)
    orders = ["data.vocabulary_order=value", "data.split.method=random", "data.chunk_bytes=3000"]
    preprocess(config(*overrides(tmp_path, "csv")[:-1], *orders))
    manifest = load_manifest(tmp_path / "out")
    for name, split in manifest.splits.items():
        for shard in split.shards:
            arrays = open_shard(tmp_path / "out", name, shard, manifest)
            users, items = np.array(arrays.sparse).T
            is_known = (users > 0) & (items > 0)
            labels = np.array(arrays.labels)[:, 0]
            assert is_known.any()
            np.testing.assert_array_equal(labels[is_known], (users + items / np.float32(32))[is_known])


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ("", "no value"),
        ("nan", "'nan' is not a number"),
        ("inf", "'inf' is not a number"),
        ("good", "'good' is not a number"),
        ("1e39", r"1e\+39 is beyond 3\.4e38"),
    ],
)
def test_other_labels_are_refused_by_row(tmp_path: Path, bad: str, fault: str) -> None:
    columns = ratings(40)
    columns["rating"] = [*map(str, columns["rating"][:6]), bad, *map(str, columns["rating"][7:])]
    write(tmp_path / "rows.csv", columns)
    with pytest.raises(UserError, match=rf"rows\.csv: row 8, column rating: ({fault})"):
        preprocess(config(*overrides(tmp_path, "csv")))


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_typed_labels_that_are_no_numbers_are_refused_by_row(tmp_path: Path, bad: float | None) -> None:
    columns = ratings(40)
    numbers = pa.array([*columns["rating"][:6], bad, *columns["rating"][7:]], pa.float64())
    pq.write_table(pa.table({**columns, "rating": numbers}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"row group 0, row 7 of it, column rating: (no value|nan|inf)"):
        preprocess(config(*overrides(tmp_path, "parquet")))


@pytest.mark.parametrize(
    "label", ['{column: rating, kind: number, rule: ">= 4"}', "{column: rating, kind: word}", "{kind: number}"]
)
def test_other_descriptions_of_a_label_are_refused(tmp_path: Path, label: str) -> None:
    write(tmp_path / "rows.csv", ratings(40))
    arguments = overrides(tmp_path, "csv")
    (tmp_path / "schema.yaml").write_text(f"label: {label}\nsparse: [user, item]\n")
    with pytest.raises(UserError, match=r"schema\.yaml: key label: .*kind: number"):
        preprocess(config(*arguments))


def test_what_is_of_clicks_alone_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", ratings(140))
    arguments = overrides(tmp_path, "csv")
    with pytest.raises(UserError, match=r"data\.sampling\.negative_drop_rate=0\.5: .* leave it out"):
        preprocess(config(*arguments, "data.sampling.negative_drop_rate=0.5"))
    preprocess(config(*arguments))
    (tmp_path / "schema.yaml").write_text('label: {column: rating, rule: ">= 3"}\nsparse: [user, item]\n')
    with pytest.raises(UserError, match=r"overwrite=true"):
        preprocess(config(*arguments))


def test_a_label_that_is_not_finite_is_found_in_shards(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", ratings(140))
    preprocess(config(*overrides(tmp_path, "csv")))
    manifest = load_manifest(tmp_path / "out")
    [shard] = manifest.splits["train"].shards
    path = shard_path(tmp_path / "out", "train", shard.name, "labels")
    labels = np.load(path)
    labels[3] = np.nan
    np.save(path, labels)
    document = json.loads((tmp_path / "out/manifest.json").read_text())
    files = document["splits"]["train"]["shards"][0]["files"]
    files["labels"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "out/manifest.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"labels\.npy: row 4, column rating: value out of range"):
        verify_dataset(tmp_path / "out")


def test_misleading_columns_are_not_looked_for_by_rates(tmp_path: Path) -> None:
    columns = ratings(3000)
    write(tmp_path / "rows.csv", columns)
    process = run(*overrides(tmp_path, "csv", "data.split.method=random"))
    assert process.returncode == 0, process.stderr
    assert "label rate" not in process.stderr
    figures = load_manifest(tmp_path / "out").extra["misleading"]
    assert figures["parts"] == []
    assert all(column["auc"] is None and column["rate_correlation"] is None for column in figures["columns"].values())
    assert all(column["stability_index"] is not None for column in figures["columns"].values())
