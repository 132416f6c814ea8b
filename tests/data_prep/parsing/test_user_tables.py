"""A user's own table by a YAML schema."""

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from common.errors import UserError
from data_prep import job_setup
from data_prep.dataset.format import load_manifest
from data_prep.dataset.table_spec import Table
from data_prep.encoding.encoder import Encoder
from data_prep.parsing.formats import table_size
from data_prep.parsing.parquet import Parquet
from data_prep.pipeline import preprocess
from data_prep.sources.discover import resolve_sources
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, load_split, run, sums

SCHEMA = """
label: {column: rating, rule: ">= 4"}
dense: [price, age]
sparse: [user, item, genre]
"""
HEADER = ["user", "ignored", "item", "rating", "price", "genre", "age"]
SPLITS = ("train", "val", "test")


def make_records(rows: int, seed: int = 0) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    genres = ["drama", "sci-fi, new", 'the "best"', "", "café"]
    return [
        {
            "user": f"u{rng.integers(40)}",
            "ignored": "x",
            "item": f"item-{int(rng.zipf(1.5)) % 60}",
            "rating": str(rng.integers(1, 11) / 2),
            "price": "" if rng.integers(5) == 0 else f"{rng.normal(10, 30):.3f}",
            "genre": genres[rng.integers(5)],
            "age": str(rng.integers(-1, 90)),
        }
        for _ in range(rows)
    ]


def as_text(records: list[dict[str, str]], delimiter: str = ",", header: bool = True, end: str = "\n") -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
    if header:
        writer.writerow(HEADER)
    writer.writerows([record[name] for name in HEADER] for record in records)
    return stream.getvalue().encode()


def expected(
    records: list[dict[str, str]], train_rows: int, rule: Callable[..., Any] = lambda rating: rating >= 4
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    labels = np.array([rule(float(record["rating"])) for record in records], np.int32)
    values = np.array([[float(record[name] or 0) for name in ("price", "age")] for record in records])
    dense = np.log1p(np.maximum(values, 0)).astype(np.float32)
    texts = [[record[name] for name in ("user", "item", "genre")] for record in records]
    sparse = np.array([[oracle.text_value(text) for text in row] for row in texts], np.uint64)
    ids = np.zeros(sparse.shape, np.int32)
    for column in range(3):
        table = {v: i + 1 for i, v in enumerate(oracle.vocabulary(sparse[:train_rows, column]))}
        ids[:, column] = [table.get(value, 0) for value in sparse[:, column].tolist()]
    return labels, dense, ids


def assert_dataset(root: Path, arrays: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    for i, array in enumerate(arrays):
        actual = np.concatenate([load_split(root, split)[i] for split in SPLITS])
        np.testing.assert_array_equal(actual, array)
    verify_dataset(root)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, list[dict[str, str]]]:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    records = make_records(350)
    (tmp_path / "rows.csv").write_bytes(as_text(records))
    return tmp_path, records


def overrides(directory: Path, name: str = "out", raw: str = "rows.csv", schema: str = "schema.yaml") -> list[str]:
    paths = [f"data.raw={directory}/{raw}", f"data.schema={directory}/{schema}", f"data.path={directory}/{name}"]
    return [*paths, "data.split.method=fraction", "data.dense_transform=log1p"]


@pytest.mark.parametrize("chunk_bytes", [700, 10**6])
def test_rows_equal_the_oracle(table: tuple[Path, list[dict[str, str]]], chunk_bytes: int) -> None:
    directory, records = table
    manifest = preprocess(config("data=custom", *overrides(directory), f"data.chunk_bytes={chunk_bytes}"))
    assert manifest.schema == {"label": "rating", "dense": ["price", "age"], "sparse": ["user", "item", "genre"]}
    assert_dataset(directory / "out", expected(records, 300))
    assert manifest.label_rate not in (None, 0, 1)


@pytest.mark.slow
def test_workers_and_compression_do_not_change_a_byte(table: tuple[Path, list[dict[str, str]]]) -> None:
    directory, records = table
    (directory / "rows.gz").write_bytes(gzip.compress(as_text(records)))
    preprocess(config(*overrides(directory), "data.chunk_bytes=3000"))
    process = run(*overrides(directory, "two"), "data.chunk_bytes=3000", "data.workers=2")
    assert process.returncode == 0, process.stderr
    preprocess(config(*overrides(directory, "gz", "rows.gz"), "data.chunk_bytes=3000"))
    assert sums(directory / "two") == sums(directory / "gz") == sums(directory / "out")


@pytest.mark.parametrize("header", [False, True])
def test_positions_tabs_and_plain_labels(tmp_path: Path, header: bool) -> None:
    records = make_records(100)
    for record in records:
        record["rating"] = str(int(float(record["rating"]) > 3))
    (tmp_path / "rows.tsv").write_bytes(as_text(records, "\t", header, end="\r\n"))
    schema = f'delimiter: "\\t"\nheader: {str(header).lower()}\nlabel: 3\ndense: [4, 6]\nsparse: [0, 2, 5]\n'
    (tmp_path / "schema.yaml").write_text(schema)
    manifest = preprocess(config(*overrides(tmp_path, raw="rows.tsv")))
    assert manifest.schema["sparse"] == (["user", "item", "genre"] if header else ["column_0", "column_2", "column_5"])
    assert_dataset(tmp_path / "out", expected(records, 86, rule=lambda rating: rating == 1))


def test_several_files_each_with_a_header(table: tuple[Path, list[dict[str, str]]]) -> None:
    directory, records = table
    for day, part in enumerate((records[:200], records[200:])):
        (directory / f"day_{day}").write_bytes(as_text(part))
    manifest = preprocess(config(*overrides(directory, raw="day_?"), "data.split.method=last_day"))
    assert [source["rows"] for source in manifest.sources] == [200, 150]
    assert_dataset(directory / "out", expected(records, 200))


def test_hash_and_other_transforms(table: tuple[Path, list[dict[str, str]]]) -> None:
    directory, records = table
    more = ["data.encoding=hash", "data.max_ind_range=97", "data.dense_transform=minmax", "data.split.method=random"]
    preprocess(config(*overrides(directory), *more))
    values = np.array([[float(record[name] or 0) for name in ("price", "age")] for record in records])
    scaled = ((values - values.min(axis=0)) / (values.max(axis=0) - values.min(axis=0))).astype(np.float32)
    dense = np.concatenate([load_split(directory / "out", split)[1] for split in SPLITS])
    np.testing.assert_allclose(np.sort(dense, axis=0), np.sort(scaled, axis=0), rtol=1e-6, atol=1e-7)
    ids = np.concatenate([load_split(directory / "out", split)[2] for split in SPLITS])
    items = [oracle.text_value(record["item"]) % 97 for record in records]
    assert sorted(ids[:, 1].tolist()) == sorted(items)


def test_new_rows_are_encoded_alike(table: tuple[Path, list[dict[str, str]]]) -> None:
    directory, records = table
    preprocess(config(*overrides(directory)))
    encoder = Encoder.load(directory / "out")
    new = make_records(80, seed=5)
    labels, dense, ids = (array[350:] for array in expected(records + new, 300))
    encoded = encoder.encode(encoder.parse(as_text(new), "new.csv"))
    np.testing.assert_array_equal(encoded.labels, labels)
    np.testing.assert_array_equal(encoded.dense, dense)
    np.testing.assert_array_equal(encoded.sparse, ids)
    stream = io.StringIO()
    csv.DictWriter(stream, ["age", "genre", "item", "user", "price"], extrasaction="ignore").writerows(new)
    unlabelled = b"age,genre,item,user,price\n" + stream.getvalue().encode()
    without_labels = encoder.encode(encoder.parse(unlabelled, "new.csv", labelled=False))
    np.testing.assert_array_equal(without_labels.sparse, ids)
    np.testing.assert_array_equal(without_labels.dense, dense)
    assert without_labels.labels.tolist() == [0] * 80
    with pytest.raises(UserError, match="no column rating"):
        encoder.parse(unlabelled, "new.csv")


@pytest.mark.parametrize(
    ("row", "change", "message"),
    [
        (20, lambda f: f[:-1], "row 21: 6 columns, but a row has 7"),
        (20, lambda f: [*f, "x"], "row 21: 8 columns, but a row has 7"),
        (33, lambda f: [*f[:4], "cheap", *f[5:]], "row 34, column price: 'cheap' is not a number"),
        (33, lambda f: [*f[:4], "nan", *f[5:]], "row 34, column price: 'nan' is not a number"),
        (33, lambda f: [*f[:3], "", *f[4:]], "row 34, column rating: no value"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [500, 10**6])
def test_bad_rows(
    table: tuple[Path, list[dict[str, str]]], row: int, change: Callable[..., Any], message: str, chunk_bytes: int
) -> None:
    directory, records = table
    rows = [[record[name] for name in HEADER] for record in records]
    rows[row - 1] = change(rows[row - 1])
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([HEADER, *rows])
    (directory / "rows.csv").write_text(stream.getvalue())
    with pytest.raises(UserError) as error:
        preprocess(config(*overrides(directory), f"data.chunk_bytes={chunk_bytes}"))
    assert message in str(error.value)
    assert str(directory / "rows.csv") in str(error.value)
    assert not (directory / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("content", "remedy", "schema"),
    [
        (
            "user;rating\n1;1\n2;0\n",
            r'write delimiter: ";" in the schema$',
            'delimiter: ";"\nlabel: rating\nsparse: [user]\n',
        ),
        ("1,1\n2,0\n", "write header: false and name columns by positions", "header: false\nlabel: 1\nsparse: [0]\n"),
        (
            "User,rating\n1,1\n2,0\n",
            "no column user, .*; it has User, rating; correct",
            "label: rating\nsparse: [User]\n",
        ),
    ],
)
def test_what_the_first_row_may_be_is_named_and_the_remedy_works(
    tmp_path: Path, content: str, remedy: str, schema: str
) -> None:
    (tmp_path / "rows.csv").write_text(content)
    (tmp_path / "schema.yaml").write_text("label: rating\nsparse: [user]\n")
    with pytest.raises(UserError, match=remedy):
        preprocess(config(*overrides(tmp_path)))
    (tmp_path / "schema.yaml").write_text(schema)
    assert preprocess(config(*overrides(tmp_path))).splits["train"].rows > 0


def test_text_that_is_not_utf8(table: tuple[Path, list[dict[str, str]]]) -> None:
    directory, records = table
    (directory / "rows.csv").write_bytes(
        as_text(records[:30]) + b"u1,x,i\xff,4,1,g,3\n" + as_text(records[30:], header=False)
    )
    with pytest.raises(UserError, match="row 32: not UTF-8"):
        preprocess(config(*overrides(directory)))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("label: [", "not readable as YAML"),
        ("label: rating", "lacks sparse; add it"),
        ("- rating", "not a mapping; write one"),
        ("lable: rating\nsparse: [user]", r"key lable is not known; did you mean label\?$"),
        ("label: rating\nsparse: [user]\ncolour: red", "key colour is not known; leave it out; known are decimal, "),
        ("label: rating\nsparse: []", "sparse at least one"),
        ("label: rating\nsparse: [user, user]", "column user is named twice"),
        (
            "label: stars\nsparse: [user]",
            f"no column stars, .*; it has {', '.join(HEADER)}; correct one of them$",
        ),
        (
            'delimiter: "\\t"\nlabel: rating\nsparse: [user]',
            r'no column rating, .*, or write delimiter: "," in the schema$',
        ),
        ("label: 7\nsparse: [user]", "column 7: the file has 7 columns"),
        ("label: -1\nsparse: [user]", "-1 is not a column"),
        ("header: false\nlabel: 3\nsparse: [user]", "'user' is not a column; of these files columns are positions"),
        ("label: rating\nsparse: [user, 0]", "column user is named twice"),
        ('label: rating\nsparse: [{column: genre, seperator: "|"}]', "seperator is not known; did you mean separator?"),
        ("label: rating\nsparse: [{column: user, part: weekdays}]", "weekdays is not known; did you mean weekday?"),
        ('label: {column: rating, rule: "over 4"}\nsparse: [user]', "key label"),
        ("header: maybe\nlabel: rating\nsparse: [user]", "keys header and delimiter"),
        ("label: rating\nsparse: [user]", "is not a label"),
    ],
)
def test_bad_schemas(table: tuple[Path, list[dict[str, str]]], schema: str, message: str) -> None:
    directory, _ = table
    (directory / "schema.yaml").write_text(schema)
    with pytest.raises(UserError, match=message) as error:
        preprocess(config(*overrides(directory)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "more", [["data.encoding=torchrec"], ["data.dense_transform=torchrec"], ["data=synthetic"], ["data=criteo_1tb"]]
)
def test_what_is_of_criteo_s_rows_only(table: tuple[Path, list[dict[str, str]]], more: list[str]) -> None:
    directory, _ = table
    arguments = overrides(directory)
    arguments = arguments[1:] if more[0].startswith("data=") else arguments
    if more == ["data=criteo_1tb"]:
        arguments += ["data.remote.mirrors=[]"]
    with pytest.raises(UserError):
        preprocess(config(*more, *arguments, "data.synthetic.rows=10"))


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"label,user,user\n1,a,b\n")
    (tmp_path / "schema.yaml").write_text("label: label\nsparse: [user]")
    with pytest.raises(UserError, match=r"rows\.csv: row 1: two columns user; rename one"):
        preprocess(config(*overrides(tmp_path)))


def test_custom_asks_for_a_schema(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(as_text(make_records(5)))
    with pytest.raises(UserError, match=r"data\.schema: not given"):
        preprocess(config("data=custom", f"data.raw={tmp_path}/rows.csv", f"data.path={tmp_path}/out"))


def test_the_manifest_names_the_table(table: tuple[Path, list[dict[str, str]]]) -> None:
    directory, _ = table
    preprocess(config(*overrides(directory)))
    entry = load_manifest(directory / "out").encoding["table"]
    assert entry["rule"] == ">= 4"
    assert entry["names"] == HEADER


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
def test_a_table_without_numeric_columns(tmp_path: Path, encoding: str) -> None:
    schema = SCHEMA.replace("dense: [price, age]\n", "")
    (tmp_path / "schema.yaml").write_text(schema)
    (tmp_path / "rows.csv").write_bytes(as_text(make_records(200)))
    extra = ["data.max_ind_range=50"] if encoding == "hash" else []
    preprocess(
        config(
            "data=custom",
            f"data.raw={tmp_path}/rows.csv",
            f"data.schema={tmp_path}/schema.yaml",
            f"data.path={tmp_path}/out",
            f"data.encoding={encoding}",
            "data.split.method=fraction",
            "data.workers=1",
            *extra,
        )
    )
    verify_dataset(tmp_path / "out")
    assert [part.shape for part in load_split(tmp_path / "out", "train")[1:]] == [(172, 0), (172, 3)]


def test_a_unit_of_rows_that_take_no_room_in_the_file_is_not_larger_in_memory(tmp_path: Path) -> None:
    count = 100_000
    pq.write_table(
        pa.table({"click": np.zeros(count, np.int8), "a": np.zeros(count, np.int32)}), tmp_path / "t.parquet"
    )
    (source,) = resolve_sources(str(tmp_path / "t.parquet"))
    table = Table(",", True, "click", (), ("a",), None, ("click", "a"), format="parquet")
    units = Parquet().chunks(source, table_size(table), 41_000)
    assert sum(unit.rows.rows for unit in units) == count
    assert max(unit.rows.rows for unit in units) <= 1000


@pytest.mark.parametrize("method", ["fraction", "random"])
@pytest.mark.parametrize("kind", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_several_chunks_to_a_shard_are_the_bytes_of_one(
    table: tuple[Path, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch, method: str, kind: str
) -> None:
    directory, records = table
    raw = "rows.csv"
    if kind == "parquet":
        raw = "rows.parquet"
        columns = {name: [record[name] for record in records] for name in ("user", "item", "genre")}
        numbers = {name: [float(record[name] or 0) for record in records] for name in ("rating", "price", "age")}
        pq.write_table(pa.table(columns | numbers), directory / raw, row_group_size=20)
    more = ["data.chunk_bytes=5000", f"data.split.method={method}"]
    whole = preprocess(config(*overrides(directory, "whole", raw), *more))
    monkeypatch.setattr(job_setup, "MIN_OWN_CHUNK_BYTES", 700)
    divided = preprocess(config(*overrides(directory, "divided", raw), *more))
    assert 1 < sum(len(split.shards) for split in whole.splits.values()) < 12
    rows = [[shard.rows for shard in manifest.splits["train"].shards] for manifest in (whole, divided)]
    assert max(rows[1]) > 20
    assert verify_dataset(directory / "divided").rows == len(records)
    for split in SPLITS:
        for one, other in zip(*(load_split(directory / name, split) for name in ("whole", "divided")), strict=True):
            np.testing.assert_array_equal(one, other)
