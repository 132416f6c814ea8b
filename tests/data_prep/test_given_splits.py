"""Files given for each split: manifest, ranges and refusals; tests/oracles/test_own_tables.py draws their rows."""

import gzip
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler

from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from tests.data_prep import oracle
from tests.data_prep.conftest import SPLITS, Capture, load_split, prepare
from tests.data_prep.tables import SCHEMA, write
from tests.error_lines import refused

ROWS = {"train": 120, "val": 40, "test": 50}


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
    """A file of drawn rows for each split, those of val and test with CRLF; a schema."""
    for seed, (split, count) in enumerate(ROWS.items()):
        path = write(directory / f"{split}.csv", columns(count, seed))
        if split != "train":
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (directory / "schema.yaml").write_text(SCHEMA)


def keys(directory: Path) -> list[str]:
    files = [f"data.{split}={directory}/{split}.csv" for split in SPLITS]
    return [*files, f"data.schema={directory}/schema.yaml", f"data.path={directory}/out"]


SLOW = [pytest.param(encoding, marks=pytest.mark.slow) for encoding in ("dlrm_kaggle", "amd_blog")]


@pytest.mark.parametrize("encoding", ["vocabulary", *SLOW])
def test_ranges_and_unknown_ids_are_of_train(tmp_path: Path, encoding: str) -> None:
    """Of encodings that elsewhere know all rows, too: values of val alone share one id that no value of train has."""
    for seed, split in enumerate(SPLITS):
        rows = oracle.make_rows(ROWS[split], seed, values=20 + 10 * seed)
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
    prepare(*keys(tmp_path), override)
    manifest = load_manifest(tmp_path / "out")
    sha256s = [hashlib.sha256((tmp_path / f"{split}.csv").read_bytes()).hexdigest() for split in SPLITS]
    for split, sha256, source in zip(SPLITS, sha256s, manifest.sources, strict=True):
        expected = {"split": split, "name": f"{split}.csv", "sha256": sha256, "rows": ROWS[split]}
        assert expected.items() <= source.items()
    assert manifest.extra["source_md5"] == [md5s[f"{split}.csv"] for split in SPLITS]
    assert manifest.encoding["split"] is None
    assert manifest.encoding["spellings"]["item"] != ""


def test_spellings_are_of_train_alone(tmp_path: Path) -> None:
    """What a typed value of new rows is taken for does not depend on how val spells it."""
    rows: dict[str, list[Any]] = {"label": [0, 1] * 10, "price": [1.0] * 20, "user": ["u"] * 20}
    write(tmp_path / "train.csv", {**rows, "item": [0, 1, 2, 3, 4] * 4})
    write(tmp_path / "val.csv", {**rows, "item": [0, 1, 2, "3.0", 4] * 4})
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    train, val, _, *rest = keys(tmp_path)
    prepare(train, val, *rest)
    encoder = Encoder.load(tmp_path / "out")
    encoded = encoder.encode(encoder.parse_columns({"price": [1.0], "user": ["u"], "item": [3]}, "request"))
    assert encoded.sparse[0, 1] > 0
    assert load_split(tmp_path / "out", "val")[2][3, 1] == 0  # "3.0" is no value of train's


def test_without_val_and_test_there_is_nothing_to_evaluate_on(tmp_path: Path, capsys: Capture) -> None:
    own_files(tmp_path)
    train, val, test, *rest = keys(tmp_path)
    for eval_keys in ([], [val], [test]):
        prepare(train, *eval_keys, *rest, "data.overwrite=true")
        warned = "warning: there is nothing to evaluate on; give data.val or data.test" in capsys.readouterr().err
        assert warned == (not eval_keys)


def test_the_same_command_finds_it_and_another_is_refused(tmp_path: Path, capsys: Capture) -> None:
    own_files(tmp_path)
    train, val, test, *rest = keys(tmp_path)
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
REFUSED: list[tuple[str, str]] = [
    ("val=train.csv", r"train\.csv: its rows are in .*, so data\.train and data\.val share them"),
    ("val=t*.csv", r"so data\.train and data\.val share them"),
    ("val=link", r"link: its rows are in .*train\.csv too"),
    ("val=hard", r"hard: its rows are in .*train\.csv too"),
    ("test=more/../train.csv", r"data\.train and data\.test share"),
    ("test=train.csv.gz", r"train\.csv\.gz: its rows are in .*train\.csv too"),
    ("val=copy.csv", rf"copy\.csv: the same bytes as .*train\.csv, .*{EACH}"),
    ("val=packed.csv.gz", rf"packed\.csv\.gz: the same rows as .*train\.csv, .*{EACH}"),
    ("test=packed.csv.gz encoding=hash max_ind_range=9", r"packed\.csv\.gz: the same rows as .*train\.csv"),
    ("val=windows.csv", r"windows\.csv: the same rows as "),
    ("train=[train.csv,train.csv]", r"name each day once in data\.train"),
    ("raw=val.csv", r"data\.raw: not together with data\.train; name all files in"),
    ("train=null val=val.csv", r"data\.val: needs data\.train, the files of the rows to train on"),
    (f"{IN_TWO} split.held_out=0.1", r"held_out=0\.1: has no effect with .*; give data\.split\.held_out="),
    ("split.method=random", r"method=random: has no effect with data\.train; name these files in data\.raw, or give"),
    ("val=val.csv split.method=last_day", r"last_day: holds no rows out of data\.train; give one of random, time"),
    ("val=val.csv encoding=torchrec schema=null", r"data\.encoding=torchrec: TorchRec's layout of"),
    ("val=val.csv encoding=torchrec_fixed schema=null", r"data\.encoding=torchrec_fixed: TorchRec's"),
    ("val=val.csv dense_transform=torchrec schema=null", r"data\.dense_transform=torchrec: shifts each"),
    ("source=criteo_1tb schema=null", r"data\.train: has no effect with data\.source=criteo_1tb"),
    ("source=random schema=null", r"data\.train: has no effect with data\.source=random"),
    ("val=none.csv", r"none\.csv: no such file; check data\.val"),
    ("test=none*", r"data\.test=.*none\*: no file matches"),
    ("train=empty.csv val=val.csv", r"empty\.csv: empty file; .* out of data\.train"),
    ("val=header.csv", r"header\.csv: no rows in it; .* leave it out of data\.val"),
    ("val=other.csv", r"other\.csv: row 1: no column item, which .*schema"),
    ("train=train.parquet val=other.parquet", r"other\.parquet: no column item, which .*schema"),
    ("train=train.jsonl val=other.jsonl", r"other\.jsonl: no column item, which .*schema"),
    ("train=train.jsonl val=lists.jsonl", r"lists\.jsonl, column item: list, but any in .*train\.jsonl"),
    ("train=train.parquet val=typed.parquet", r"typed\.parquet, column user: integer, but text in .*train\.parquet"),
    ("val=train.parquet", r"parquet and text files together in data\.train and data\.val"),
    (f"val=val.csv checksums={{val.csv:{SUM}}}", rf"val\.csv: MD5 \w+ where data\.checksums has {SUM}; get the"),
    ("checksums={train.csv:abc}", r"train\.csv: abc is not an MD5 of 32 hex"),
    (f"checksums={{val.csv:{SUM}}}", r"data\.checksums: val\.csv: no file of data\.train, .*; correct it, or leave it"),
    (f"train=more/x.csv val=other/x.csv checksums={{x.csv:{SUM}}}", r"x\.csv: 2 files .*; give the path of each"),
    ("train=null raw=train.csv checksums={train.csv:abc}", r"data\.checksums: has no effect without data\.train"),
    ("train=. path=.", r"data\.train=.*: is data\.path too"),
    ("val=bad.csv", r"bad\.csv: row 3, column price"),
    (f"train=negative.csv {NO_NEGATIVES}", r"negative_drop_rate: no row of data\.train is left"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    own_files(directory)
    for suffix in (".parquet", ".jsonl"):
        write(directory / f"train{suffix}", columns(30, 0))
    for name in ("more", "other"):
        (directory / name).mkdir()
        write(directory / name / "x.csv", columns(30, len(name)))
    (directory / "link").symlink_to("train.csv")
    os.link(directory / "train.csv", directory / "hard")
    train = (directory / "train.csv").read_bytes()
    head, row = "label,price,user,item\n", {"label": [0], "price": [1.0], "user": ["a"]}
    contents: dict[str, Any] = dict.fromkeys(("train.csv.gz", "packed.csv.gz"), gzip.compress(train))
    contents |= {"copy.csv": train, "windows.csv": train.replace(b"\n", b"\r\n"), "empty.csv": b"", "header.csv": head}
    contents |= {"bad.csv": f"{head}0,1,a,2\n1,many,a,2\n", "negative.csv": f"{head}0,1,a,2\n0,2,a,2\n"}
    contents |= {"other.csv": "label,price,user,thing\n0,1,a,2\n", "other.jsonl": row, "other.parquet": row}
    contents |= {"lists.jsonl": row | {"item": [[1]]}, "typed.parquet": row | {"user": [1], "item": [2]}}
    for name, content in contents.items():
        write(directory / name, content)
    return directory


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_refused_in_one_line_before_anything_is_written(
    keys: str, message: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    before = sorted(map(str, files.rglob("*")))
    usual = [f"data.path={tmp_path}/out", "data.train=train.csv", "data.schema=schema.yaml"]
    refused(message, prepare, *usual, *(f"data.{each}" for each in keys.split()))
    assert not (tmp_path / "out/manifest.json").exists()
    assert sorted(map(str, files.rglob("*"))) == before
