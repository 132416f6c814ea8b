"""A user's own table with multi-valued columns, as text and as Parquet."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding.encoder import Encoder
from data_prep.encoding.lookup import SortedTable
from data_prep.engine import memory_budget
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, run, sums

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = """
label: rating >= 4
dense: [price]
sparse: [user, {column: genres, separator: "|"}, item, {column: tags, separator: ", "}]
"""
PARQUET_SCHEMA = """
label: rating >= 4
dense: [price]
sparse: [user, genres, item, {column: tags, separator: ", "}]
"""
HEADER = ["user", "item", "rating", "price", "genres", "tags"]
SPLITS = ("train", "val", "test")
GENRES = ["Action", "Comedy", "Drama", "Film-Noir", "Sci-Fi", "Été"]


def make_records(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "user": int(rng.integers(40)),
            "item": f"item-{int(rng.zipf(1.5)) % 60}",
            "rating": float(rng.integers(1, 11) / 2),
            "price": None if rng.integers(5) == 0 else float(rng.normal(10, 30)),
            "genres": [GENRES[g] for g in rng.permutation(6)[: rng.integers(0, 4)]],
            "tags": [f"t{int(t)}" for t in rng.integers(0, 30, rng.integers(0, 9))],
        }
        for _ in range(rows)
    ]


def as_text(records: list[dict[str, Any]]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(HEADER)
    for record in records:
        joined = {"genres": "|".join(record["genres"]), "tags": ", ".join(record["tags"])}
        writer.writerow(["" if value is None else value for value in (record | joined).values()])
    return stream.getvalue().encode()


def write_parquet(path: Path, records: list[dict[str, Any]], group: int = 70, **changes: Any) -> None:
    columns = {name: [record[name] for record in records] for name in HEADER}
    columns["tags"] = [", ".join(tags) or None for tags in columns["tags"]]
    table = pa.table(columns | changes)
    pq.write_table(table, path, row_group_size=group)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "text.yaml").write_text(SCHEMA)
    (tmp_path / "parquet.yaml").write_text(PARQUET_SCHEMA)
    (tmp_path / "rows.csv").write_bytes(as_text(make_records(350)))
    write_parquet(tmp_path / "rows.parquet", make_records(350))
    return tmp_path


def overrides(directory: Path, kind: str, name: str = "out", *more: str) -> list[str]:
    schema = "text" if kind == "csv" else kind
    return [
        "data=custom",
        f"data.raw={directory}/rows.{kind}",
        f"data.schema={directory}/{schema}.yaml",
        f"data.path={directory}/{name}",
        "data.split.method=fraction",
        "data.dense_transform=log1p",
        *more,
    ]


def rows_of(root: Path) -> tuple[list[int], list[float], list[list[list[Any]]]]:
    """All rows in the order of the splits: labels, dense and the ids of each feature as lists."""
    manifest = verify_dataset(root)
    labels, dense, ids = [], [], []
    for split in SPLITS:
        for shard in manifest.splits[split].shards:
            arrays = open_shard(root, split, shard, manifest)
            bags = iter([np.split(feature.ids, feature.offsets[1:-1] - feature.offsets[0]) for feature in arrays.bags])
            single = iter(arrays.sparse.T[:, :, None])
            features = [next(bags if f in manifest.ragged else single) for f in manifest.schema["sparse"]]
            ids += [[ids.tolist() for ids in row] for row in zip(*features, strict=True)]
            labels += arrays.labels[:, 0].tolist()
            dense += arrays.dense[:, 0].tolist()
    return labels, dense, ids


def expected(
    records: list[dict[str, Any]], train_rows: int, order: str = "frequency"
) -> tuple[list[int], list[float], list[list[list[Any]]]]:
    """By dictionaries: ids from 1 by falling count over the train rows (ties by rising hash), or by appearance."""
    values = [
        [
            [oracle.text_value(str(v)) for v in (record[f] if isinstance(record[f], list) else [record[f]])]
            for f in ("user", "genres", "item", "tags")
        ]
        for record in records
    ]
    tables = []
    for feature in range(4):
        counts: dict[int, int] = {}
        first: dict[int, int] = {}
        for number, row in enumerate(values[:train_rows]):
            for value in row[feature]:
                counts[value] = counts.get(value, 0) + 1
                first.setdefault(value, number)
        key = (lambda v, c=counts: (-c[v], v)) if order == "frequency" else (lambda v, f=first: (f[v], v))
        tables.append({value: i + 1 for i, value in enumerate(sorted(counts, key=key))})
    ids = [[[tables[f].get(v, 0) for v in bag] for f, bag in enumerate(row)] for row in values]
    price = np.array([record["price"] or 0 for record in records])
    dense = np.log1p(np.maximum(price, 0)).astype(np.float32).tolist()
    return [int(record["rating"] >= 4) for record in records], dense, ids


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("order", ["frequency", "first_appearance"])
def test_bags_equal_the_oracle(directory: Path, kind: str, order: str) -> None:
    more = ["data.chunk_bytes=3000", f"data.vocabulary_order={order}"]
    manifest = preprocess(config(*overrides(directory, kind, "out", *more)))
    sparse = ["user", "genres", "item", "tags"]
    assert manifest.schema == {"label": "rating", "dense": ["price"], "sparse": sparse, "ragged": ["genres", "tags"]}
    assert sum(len(split.shards) for split in manifest.splits.values()) > 4
    assert rows_of(directory / "out") == expected(make_records(350), 300, order)


@pytest.mark.slow
def test_rows_that_leave_their_order_take_their_bags_along(directory: Path) -> None:
    more = ["data.chunk_bytes=3000", "data.split.method=random", "data.split.held_out=0.3"]
    for kind in ("csv", "parquet"):
        preprocess(config(*overrides(directory, kind, kind, *more)))
    manifest = load_manifest(directory / "csv")
    train = manifest.splits["train"].rows
    rows = rows_of(directory / "csv")
    # prices tell rows apart; those that are missing are told by their other columns
    records = make_records(350)
    by_price = {round(float(np.float32(np.log1p(max(r["price"] or 0, 0)))), 6): r for r in records}
    ordered = [by_price[round(price, 6)] for price in rows[1] if price]
    assert len(ordered) > 150
    expected_rows = expected(ordered, 0)
    assert [label for label, price in zip(rows[0], rows[1], strict=True) if price] == expected_rows[0]
    sizes = [[len(bag) for bag in row] for row, price in zip(rows[2], rows[1], strict=True) if price]
    assert sizes == [[len(bag) for bag in row] for row in expected_rows[2]]
    assert 0 < train < 350
    assert rows_of(directory / "parquet") == rows


def test_hash_needs_no_vocabulary(directory: Path) -> None:
    more = ["data.encoding=hash", "data.max_ind_range=50"]
    for kind in ("csv", "parquet"):
        preprocess(config(*overrides(directory, kind, kind, *more)))
    expected_ids = [
        [
            [oracle.text_value(str(v)) % 50 for v in (r[f] if isinstance(r[f], list) else [r[f]])]
            for f in ("user", "genres", "item", "tags")
        ]
        for r in make_records(350)
    ]
    assert rows_of(directory / "csv")[2] == expected_ids
    assert sums(directory / "csv").keys()
    assert rows_of(directory / "parquet")[2] == expected_ids


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_workers_do_not_change_a_byte(directory: Path, kind: str) -> None:
    more = ["data.chunk_bytes=3000"]
    preprocess(config(*overrides(directory, kind, "one", *more)))
    process = run(*overrides(directory, kind, "two", *more, "data.workers=2"))
    assert process.returncode == 0, process.stderr
    assert sums(directory / "one") == sums(directory / "two")


def test_vocabularies_beyond_the_budget(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preprocess(config(*overrides(directory, "csv", "whole")))
    monkeypatch.setattr(SortedTable, "bytes_for", staticmethod(lambda values: values << 20))
    monkeypatch.setattr(memory_budget, "PARENT_BYTES", 480 << 20)
    monkeypatch.setattr(memory_budget, "MIN_PASS_BYTES", 48 << 20)
    preprocess(config(*overrides(directory, "csv", "parts", "data.memory_budget=512MiB")))
    assert re.search(r"encoding in \d+ passes", capsys.readouterr().err)
    assert sums(directory / "parts") == sums(directory / "whole")


@pytest.mark.slow
def test_row_groups_larger_than_a_unit_are_divided(directory: Path) -> None:
    write_parquet(directory / "rows.parquet", make_records(350), group=350)
    manifest = preprocess(config(*overrides(directory, "parquet", "out", "data.chunk_bytes=2000")))
    assert len(manifest.splits["train"].shards) > 2
    assert rows_of(directory / "out") == expected(make_records(350), 300)


def test_new_rows_are_encoded_alike(directory: Path) -> None:
    preprocess(config(*overrides(directory, "csv")))
    encoder = Encoder.load(directory / "out")
    records = make_records(350)
    new = make_records(60, seed=5)
    new[0]["genres"] = ["Western", "Drama"]
    encoded = encoder.encode(encoder.parse(as_text(new), "new.csv"))
    parts: list[Any] = [part[350:] for part in expected(records + new, 300)]
    _, dense, ids = parts
    assert encoded.dense[:, 0].tolist() == dense
    assert encoded.sparse.tolist() == [[row[0][0], row[2][0]] for row in ids]
    for place, feature in enumerate((1, 3)):
        bags = encoded.bags[place]
        assert [bag.tolist() for bag in np.split(bags.ids, bags.offsets[1:-1])] == [row[feature] for row in ids]
    assert encoded.out_of_vocabulary.tolist() == [sum(row[f].count(0) for row in ids) for f in range(4)]
    unknown = encoder.unknown(encoder.parse(as_text(new), "new.csv"))
    assert unknown.tolist() == [[0 in row[f] for f in range(4)] for row in ids]
    assert unknown[0, 1]


def replaced(name: str, place: int, value: Any) -> Any:
    columns = [record[name] for record in make_records(350)]
    columns[place] = value
    return {name: columns}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (replaced("rating", 149, None), "row group 2, row 10 of it, column rating: no value"),
        (replaced("price", 80, float("inf")), "row group 1, row 11 of it, column price: inf is not a number"),
        ({"price": ["cheap"] * 350}, "column price: text, not numbers"),
        ({"user": [3.0] * 99 + [0.5] * 251}, "row group 1, row 30 of it, column user: 0.5 is not a category"),
        ({"item": [[0.5]] * 350}, "column item: list<"),
    ],
)
def test_bad_values_in_parquet(directory: Path, changes: dict[str, Any], message: str) -> None:
    write_parquet(directory / "rows.parquet", make_records(350), **changes)
    with pytest.raises(UserError) as error:
        preprocess(config(*overrides(directory, "parquet", "out", "data.chunk_bytes=3000")))
    assert message in str(error.value)
    assert str(directory / "rows.parquet") in str(error.value)
    assert "\n" not in str(error.value)
    assert not (directory / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("delimiter: ';'\nlabel: rating >= 4\nsparse: [user]", "key delimiter: has no effect"),
        ("label: rating >= 4\nsparse: [{column: genres, separator: '|'}]", "holds lists .* leave the separator out"),
        ("label: rating >= 4\nsparse: [{column: user, separator: '|'}]", "which no separator divides"),
        ("label: rating\nsparse: [user]", "row group 0, row 1 of it, column rating: .* is not a label"),
        ("label: rating >= 4\nsparse: [users]", "no column users"),
        ("label: rating >= 4\nsparse: [9]", "column 9: the file has 6 columns"),
        ("label: rating >= 4\nsparse: [{column: genres}]", "key sparse"),
    ],
)
def test_bad_schemas(directory: Path, schema: str, message: str) -> None:
    (directory / "parquet.yaml").write_text(schema)
    with pytest.raises(UserError, match=message):
        preprocess(config(*overrides(directory, "parquet")))


def test_integers_with_gaps_are_integers_still(directory: Path) -> None:
    preprocess(config(*overrides(directory, "parquet", "whole")))
    gaps = [float(record["user"]) for record in make_records(350)]
    write_parquet(
        directory / "rows.parquet",
        make_records(350),
        user=gaps,
        genres=pa.array([record["genres"] or None for record in make_records(350)], pa.large_list(pa.large_string())),
    )
    preprocess(config(*overrides(directory, "parquet", "gaps")))
    assert sums(directory / "gaps") == sums(directory / "whole")


def test_columns_by_position_and_damaged_files(directory: Path) -> None:
    (directory / "parquet.yaml").write_text("label: {column: 2, rule: '>= 4'}\ndense: [3]\nsparse: [0, 4]\n")
    manifest = preprocess(config(*overrides(directory, "parquet")))
    assert manifest.schema["sparse"] == ["user", "genres"]
    content = (directory / "rows.parquet").read_bytes()
    (directory / "rows.parquet").write_bytes(content[:-20])
    with pytest.raises(UserError, match="not readable as Parquet"):
        preprocess(config(*overrides(directory, "parquet", "other")))
