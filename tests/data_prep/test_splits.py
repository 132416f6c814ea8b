"""Splits: by time, group and label, files given for each, and what is refused; tests/oracles draw further ones."""

import gzip
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler

from data_prep import job
from data_prep.dataset.format import load_manifest
from data_prep.verify import verify_dataset
from tests.data_prep import oracle, tables
from tests.data_prep.conftest import SPLITS, Capture, load_split, prepare
from tests.data_prep.tables import write
from tests.error_lines import refused

ROWS = 900
SCHEMA = "label: label\ndense: [row]\nsparse: [user, item]\n"
RAW = "data.dense_transform=raw"  # so that the number of each row can be read from a shard


def table(seed: int = 0, rows: int = ROWS) -> dict[str, list[Any]]:
    """Rows in no order of time, user or label."""
    rng = np.random.default_rng(seed)
    return {
        "label": (rng.random(rows) < 0.2).astype(int).tolist(),
        "row": list(range(rows)),
        "user": [f"u{user}" for user in rng.integers(0, 60, rows)],
        "item": rng.integers(0, 40, rows).tolist(),
        "ts": (1_600_000_000 + rng.integers(0, 10**6, rows)).tolist(),
    }


def make(directory: Path, content: dict[str, list[Any]], *keys: str, name: str = "rows.csv", out: str = "out") -> Any:
    """The row numbers of each split, in the order of the shards."""
    write(directory / name, content)
    if not (directory / "schema.yaml").exists():
        (directory / "schema.yaml").write_text(SCHEMA)
    raw = [] if any(key.startswith("data.train=") for key in keys) else [f"data.raw={directory / name}"]
    prepare(*raw, f"data.schema={directory}/schema.yaml", f"data.path={directory / out}", RAW, *keys)
    verify_dataset(directory / out)
    return {split: load_split(directory / out, split)[1][:, 0].astype(int).tolist() for split in SPLITS}


METHODS = {
    "time": ["data.split.method=time", "data.split.column=ts"],
    "group": ["data.split.method=group", "data.split.column=user"],
    "stratified": ["data.split.method=stratified"],
    "random": ["data.split.method=random"],
}


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drop", ["", "data.sampling.negative_drop_rate=0.5"])
def test_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, drop: str) -> None:
    content, results = table(), []
    for size in (2000, 1 << 20):
        monkeypatch.setattr(job, "MIN_OWN_CHUNK_BYTES", size)
        keys = [*METHODS[method], f"data.chunk_bytes={size}", *([drop] if drop else [])]
        results.append(make(tmp_path, content, *keys, out=f"out{size}"))
    assert results[0] == results[1]
    kept = [row for split in SPLITS for row in results[0][split]]
    assert {row for row in range(ROWS) if content["label"][row]} <= set(kept)
    assert (len(kept) < ROWS) == bool(drop)
    if method == "stratified":
        rates = [np.mean([content["label"][row] for row in results[0][split]]) for split in SPLITS]
        assert rates == pytest.approx([rates[0]] * 3, abs=0.01)


@pytest.mark.parametrize("missing", ["val", "test"])
@pytest.mark.parametrize("method", [*METHODS, ""])
def test_a_missing_split_is_held_out_of_train(tmp_path: Path, method: str, missing: str) -> None:
    given = "test" if missing == "val" else "val"
    content, other = table(), table(seed=9, rows=50)
    other["row"] = list(range(5000, 5050))
    write(tmp_path / f"{given}.csv", {name: other[name] for name in content})
    keys = METHODS.get(method, [])
    files = [f"data.train={tmp_path}/rows.csv", f"data.{given}={tmp_path}/{given}.csv"]
    rows = make(tmp_path, content, *files, *keys, "data.split.held_out=0.3")
    assert rows[given] == other["row"]
    assert sorted(rows["train"] + rows[missing]) == list(range(ROWS))
    assert len(rows[missing]) == pytest.approx(0.3 * ROWS, rel=0.6)
    by_row = {"time": "ts", "group": "user", "stratified": "label"}.get(method)
    train, held_out = (np.array(content[by_row or "row"])[rows[split]] for split in ("train", missing))
    assert method != "time" or train.max() < held_out.min()
    assert method != "group" or not {*train} & {*held_out}
    assert method != "stratified" or held_out.mean() == pytest.approx(train.mean(), abs=0.01)
    assert make(tmp_path, content, *files, *keys, "data.split.held_out=0.3") == rows  # finished already
    refused("holds another dataset", make, tmp_path, content, *files, *keys, "data.split.held_out=0.2")


# A column of the table with some of its values, the keys of the split, the form of the file, and what the line says.
REFUSALS: list[tuple[str, list[Any], str, str, str]] = [
    ("ts", [], "method=group", "csv", r"give data\.split\.column=COLUMN$"),
    ("ts", [], "method=time column=when", "csv", r"\.csv: no column when, which data\.split\.column names"),
    ("ts", [1, None], "method=time column=ts", "csv", r"rows\.csv: row 3, column ts: no value; .* fill it in"),
    ("user", ["u", None], "method=group column=user", "parquet", r"row 2 of it, column user: no value"),
    ("ts", [1, "2024-01-01"], "method=time column=ts", "csv", r"column ts: '2024-01-01' is text, but the first"),
    ("user", ["u", 3], "method=group column=user", "jsonl", r"column user: 3 is a number, but the first row has"),
    ("ts", [5] * 40, "method=time column=ts", "csv", "fewer than 3 different times"),
]


@pytest.mark.parametrize(("column", "values", "keys", "form", "message"), REFUSALS)
def test_refusals(tmp_path: Path, column: str, values: list[Any], keys: str, form: str, message: str) -> None:
    content = table(rows=40)
    content[column][: len(values)] = values
    refused(message, make, tmp_path, content, *(f"data.split.{key}" for key in keys.split()), name=f"rows.{form}")


GIVEN_ROWS = {"train": 120, "val": 40, "test": 50}


def columns(count: int, seed: int) -> dict[str, list[Any]]:
    """Columns of few values, of which some are missing, and some are this seed's own."""
    draw = random.Random(seed)
    users = [None, "b", "a", "é", "x y", "07", f"only in {seed}"]
    return {
        "label": [draw.randint(0, 1) for _ in range(count)],
        "price": [draw.choice([None, draw.randint(-9, 99) / 4]) for _ in range(count)],
        "user": [draw.choice(users) for _ in range(count)],
        "item": [draw.choice([None, draw.randint(0, 12), 10 * seed + draw.randint(0, 9)]) for _ in range(count)],
    }


def own_files(directory: Path) -> None:
    for seed, (split, count) in enumerate(GIVEN_ROWS.items()):
        path = write(directory / f"{split}.csv", columns(count, seed))
        if split != "train":
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (directory / "schema.yaml").write_text(tables.SCHEMA)


def keys_of(directory: Path) -> list[str]:
    files = [f"data.{split}={directory}/{split}.csv" for split in SPLITS]
    return [*files, f"data.schema={directory}/schema.yaml", f"data.path={directory}/out"]


SLOW = [pytest.param(encoding, marks=pytest.mark.slow) for encoding in ("dlrm_kaggle", "amd_blog")]


@pytest.mark.parametrize("encoding", ["vocabulary", *SLOW])
def test_ranges_and_unknown_ids_are_of_train(tmp_path: Path, encoding: str) -> None:
    for seed, split in enumerate(SPLITS):
        rows = oracle.make_rows(GIVEN_ROWS[split], seed, values=20 + 10 * seed)
        (tmp_path / f"{split}.tsv").write_bytes(rows.replace(b"\n", b"\r\n") if split == "val" else rows)
    files = [f"data.{split}={tmp_path}/{split}.tsv" for split in SPLITS]
    manifest = prepare(*files, f"data.path={tmp_path}/out", f"data.encoding={encoding}", "data.dense_transform=minmax")
    parsed = [oracle.parse((tmp_path / f"{split}.tsv").read_bytes()) for split in SPLITS]
    integers = [np.where(dense == oracle.MISSING, 0, dense).astype(np.float64) for _, dense, _ in parsed]
    scaler = MinMaxScaler().fit(integers[0])
    for split, numbers, (labels, _, values) in zip(SPLITS, integers, parsed, strict=True):
        of_split, dense, sparse = load_split(tmp_path / "out", split)
        order = np.arange(len(labels))
        if split == "train" and encoding == "dlrm_kaggle":  # which shuffles train, and nothing else
            order = np.random.RandomState(123).permutation(len(labels))
        np.testing.assert_array_equal(of_split, labels[order])
        np.testing.assert_allclose(dense, scaler.transform(numbers[order]), rtol=1e-6, atol=1e-6)
        for column in range(26):
            is_known = np.isin(values[order, column], parsed[0][2][:, column])
            np.testing.assert_array_equal(sparse[:, column] > 0, is_known)
            assert sparse[:, column].max() < manifest.num_embeddings[f"cat_{column}"]


def test_the_manifest_names_each_file_with_split_and_sums(tmp_path: Path) -> None:
    own_files(tmp_path)
    md5s = {name: hashlib.md5((tmp_path / name).read_bytes()).hexdigest() for name in os.listdir(tmp_path)}
    override = f"data.checksums={{train.csv: {md5s['train.csv'].upper()}, {tmp_path}/val.csv: {md5s['val.csv']}}}"
    prepare(*keys_of(tmp_path), override)
    manifest = load_manifest(tmp_path / "out")
    sha256s = [hashlib.sha256((tmp_path / f"{split}.csv").read_bytes()).hexdigest() for split in SPLITS]
    for split, sha256, source in zip(SPLITS, sha256s, manifest.sources, strict=True):
        expected = {"split": split, "name": f"{split}.csv", "sha256": sha256, "rows": GIVEN_ROWS[split]}
        assert expected.items() <= source.items()
    assert manifest.extra["source_md5"] == [md5s[f"{split}.csv"] for split in SPLITS]
    assert manifest.encoding["split"] is None
    assert manifest.encoding["spellings"]["item"] != ""


def test_the_same_command_finds_it_and_another_is_refused(tmp_path: Path, capsys: Capture) -> None:
    own_files(tmp_path)
    train, val, test, *rest = keys_of(tmp_path)
    prepare(train, val, test, *rest)
    prepare(train, val, test, *rest)
    assert "already done (210 rows)" in capsys.readouterr().err
    swapped = [f"data.val={tmp_path}/test.csv", f"data.test={tmp_path}/val.csv"]
    raw = f"data.raw=[{','.join(f'{tmp_path}/{split}.csv' for split in SPLITS)}]"
    for other in ([train, *swapped], [train, f"data.val=[{tmp_path}/val.csv,{tmp_path}/test.csv]"], [raw]):
        refused("made from other raw files, or for other splits", prepare, *other, *rest)
    message = r"split\.method is files given for each split there, random here"
    refused(message, prepare, raw, *rest, "data.split.method=random")
    checksums = f"data.checksums={{val.csv: '{'0' * 32}'}}"
    message = r"val\.csv: MD5 .* where data\.checksums has 0{32}"
    refused(message, prepare, train, val, test, *rest, checksums)


SUM = "0123456789abcdef0123456789abcdef"
NO_NEGATIVES = "val=val.csv sampling.negative_drop_rate=1 allow_degenerate=true"
EACH = r"name each once in data\.train or data\.val"
IN_TWO = "val=val.csv test=other.csv"
# Keys beside data.train=train.csv, of files in this directory; what the one line has.
GIVEN_REFUSED: list[tuple[str, str]] = [
    ("val=train.csv", rf"train\.csv: the same rows as .*train\.csv, .*{EACH}"),
    ("val=copy.csv", rf"copy\.csv: the same bytes as .*train\.csv, .*{EACH}"),
    ("val=packed.csv.gz", rf"packed\.csv\.gz: the same rows as .*train\.csv, .*{EACH}"),
    ("raw=val.csv", r"data\.raw: not together with data\.train; name all files in"),
    ("train=null val=val.csv", r"data\.val: needs data\.train, the files of the rows to train on"),
    (f"{IN_TWO} split.held_out=0.1", r"held_out=0\.1: has no effect with .*; give data\.split\.held_out="),
    ("val=val.csv encoding=torchrec schema=null", r"data\.encoding=torchrec: TorchRec's layout of"),
    ("train=empty.csv val=val.csv", r"empty\.csv: empty file; .* out of data\.train"),
    ("val=other.csv", r"other\.csv: row 1: no column item, which .*schema"),
    ("train=train.jsonl val=lists.jsonl", r"lists\.jsonl, column item: list, but any in .*train\.jsonl"),
    ("train=train.parquet val=typed.parquet", r"typed\.parquet, column user: integer, but text in .*train\.parquet"),
    ("val=train.parquet", r"parquet and text files together in data\.train and data\.val"),
    (f"val=val.csv checksums={{val.csv:{SUM}}}", rf"val\.csv: MD5 \w+ where data\.checksums has {SUM}; get the"),
    (f"checksums={{val.csv:{SUM}}}", r"data\.checksums: val\.csv: no file of data\.train, .*; correct it, or leave it"),
    ("train=null raw=train.csv checksums={train.csv:abc}", r"data\.checksums: has no effect without data\.train"),
    ("val=bad.csv", r"bad\.csv: row 3, column price"),
    (f"train=negative.csv {NO_NEGATIVES}", r"negative_drop_rate: no row of data\.train is left"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    own_files(directory)
    for suffix in (".parquet", ".jsonl"):
        write(directory / f"train{suffix}", columns(30, 0))
    train = (directory / "train.csv").read_bytes()
    head, row = "label,price,user,item\n", {"label": [0], "price": [1.0], "user": ["a"]}
    contents: dict[str, Any] = {"packed.csv.gz": gzip.compress(train)}
    contents |= {"copy.csv": train, "empty.csv": b""}
    contents |= {"bad.csv": f"{head}0,1,a,2\n1,many,a,2\n", "negative.csv": f"{head}0,1,a,2\n0,2,a,2\n"}
    contents |= {"other.csv": "label,price,user,thing\n0,1,a,2\n"}
    contents |= {"lists.jsonl": row | {"item": [[1]]}, "typed.parquet": row | {"user": [1], "item": [2]}}
    for name, content in contents.items():
        write(directory / name, content)
    return directory


@pytest.mark.parametrize(("keys", "message"), GIVEN_REFUSED)
def test_refused_in_one_line_before_anything_is_written(
    keys: str, message: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    before = sorted(map(str, files.rglob("*")))
    usual = [f"data.path={tmp_path}/out", "data.train=train.csv", "data.schema=schema.yaml"]
    refused(message, prepare, *usual, *(f"data.{each}" for each in keys.split()))
    assert not (tmp_path / "out/manifest.json").exists()
    assert sorted(map(str, files.rglob("*"))) == before
