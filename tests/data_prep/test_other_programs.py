"""Datasets as TorchRec and facebookresearch/dlrm make and read them; published splits as their authors write them."""

import functools
import hashlib
import http.server
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from msgspec import structs
from numpy.typing import NDArray

from app.config.data import DataConfig
from app.data.split import SplitReader
from data_prep import published
from data_prep.config import RULES
from data_prep.dataset.format import load_manifest
from data_prep.dataset.options import Encoding
from data_prep.encoding import Encoder, read_new_rows
from data_prep.parsing.criteo import parse_bytes
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import REFERENCE, SPLITS, load_split, prepare

ROWS = REFERENCE / "rows.tsv"


@pytest.mark.medium
def test_dlrm_kaggle(tmp_path: Path) -> None:
    golden = np.load(REFERENCE / "dlrm_kaggle.npz")
    root, raw = tmp_path / "out", tmp_path / "raw"
    overrides = [f"data.raw={ROWS}", "data.encoding=dlrm_kaggle"]
    manifest = prepare(*overrides, f"data.path={root}")
    verify_dataset(root)
    prepare(*overrides, f"data.path={raw}", "data.dense_transform=integers")
    encoder = Encoder.load(root)
    block = parse_bytes(ROWS.read_bytes(), "rows")
    encoded = encoder.encode(encoder.parse_columns(read_new_rows(ROWS, encoder.shape()).columns, "rows"))
    arrays: dict[str, Any] = {
        "X_int": np.maximum(block.dense, 0),  # negatives are 0 there
        "X_cat_raw_int32": block.sparse.view(np.int32),
        "y": block.labels,
        "X_cat": encoded.sparse,
        "X_cat_int64": encoded.sparse,
        "X_int_log1p_f32": encoded.dense,
        "counts": list(manifest.num_embeddings.values()),
    }
    for column, feature in enumerate(manifest.schema["sparse"]):
        arrays[f"dict_{column}"] = np.load(root / "vocab" / f"{feature}.npy").view(np.int32)
    for split in SPLITS:
        labels, dense, sparse = load_split(root, split)
        integers = np.maximum(load_split(raw, split)[1], 0)
        arrays |= {f"{split}_y": labels, f"{split}_X_cat": sparse, f"{split}_X_int": integers}
        np.testing.assert_array_equal(dense, np.log(golden[f"{split}_X_int"].astype(np.float32) + 1))
    reader = SplitReader(root, load_manifest(root), "train", DataConfig(), rank=0, world_size=1)
    batch = next(reader.eval_batches(128))
    offsets = batch.sparse_features.offsets().numpy()
    arrays |= {
        "train_b0_X": batch.dense_features,
        "train_b0_T": batch.labels[:, None],
        "train_b0_idx": batch.sparse_features.values().reshape(26, 128),
        "train_b0_offsets": offsets[:-1].reshape(26, 128) - offsets[:-1:128, None],
    }
    held_out = len(arrays["val_y"]) + len(arrays["test_y"])  # the last of its seven files
    arrays["total_per_file"] = [*map(len, np.array_split(arrays["train_y"], 6)), held_out]
    assert set(arrays) == set(golden.files)
    for name in golden.files:
        actual = np.asarray(arrays[name])
        assert actual.shape == golden[name].shape, name
        rounded = 2.5e-7 if name == "train_b0_X" else 0  # there by torch.log
        np.testing.assert_allclose(actual, golden[name], rtol=rounded, err_msg=name)


EDGES_OF_INT32 = (2**31 - 1, -(2**31), -(2**31) + 1)
EDGES_OF_HEX = ("00000000", "7fffffff", "80000000", "ffffffff")


def awkward_day(rows: int, seed: int, edge: bool) -> bytes:
    """Empty fields, negatives, categories at the ends of int32 and uint32; if `edge`, integers at int32's ends."""
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        integers = [str(rng.integers(-5, 1000)) for _ in range(13)]
        integers = ["" if rng.integers(4) == 0 else integer for integer in integers]
        if edge and row % 7 == 0:
            integers[row % 13] = str(EDGES_OF_INT32[row % 3])
        values = [f"{int(rng.integers(0, 12)) * 357913941 % 2**32:08x}" for _ in range(26)]
        values = ["" if rng.integers(6) == 0 else value for value in values]
        for column in range(row % 3, 26, 3):
            values[column] = EDGES_OF_HEX[(row + column) % 5] if (row + column) % 5 < 4 else values[column]
        lines.append("\t".join([str(rng.integers(2)), *integers, *values]))
    return ("\n".join(lines) + "\n").encode()


def run_torchrec(
    criteo: ModuleType, directory: Path, days: int, threshold: int, shift: int = 0
) -> tuple[list[list[NDArray[Any]]], list[NDArray[Any]]]:
    """Its three steps; labels, dense and sparse of every day, and the ids of every day before the shuffle.

    Args:
        shift: what is added to the ids from 2 on before the shuffle, as if as many values had come before.
    """
    utils = criteo.BinaryCriteoUtils
    for name in ("npy", "contig", "shuffled"):
        (directory / name).mkdir()
    rows = {}
    for day in range(days):
        files = [str(directory / "npy" / f"day_{day}_{kind}.npy") for kind in ("dense", "sparse", "labels")]
        utils.tsv_to_npys(str(directory / f"day_{day}"), *files)
        if day < days - 1:  # as TorchRec's own script: the last day is not counted, for it is not shuffled
            rows[day] = len(np.load(files[0]))
    files = [str(directory / "npy" / f"day_{day}_sparse.npy") for day in range(days)]
    utils.sparse_to_contiguous(files, str(directory / "contig"), threshold, output_file_suffix=".npy")
    contiguous = []
    for path in [directory / "contig" / f"day_{day}_sparse.npy" for day in range(days)]:
        ids = np.load(path)
        ids[ids > 1] += shift
        np.save(path, ids)
        contiguous.append(ids)
    utils.shuffle(str(directory / "npy"), str(directory / "contig"), str(directory / "shuffled"), rows, days=days)
    kinds = ("labels", "dense", "sparse")
    shuffled = [[np.load(directory / f"shuffled/day_{day}_{kind}.npy") for kind in kinds] for day in range(days)]
    return shuffled, contiguous


def assert_same_bytes(root: Path, days: list[list[NDArray[Any]]]) -> None:
    """Labels, dense and sparse of a dataset, against those of the days that TorchRec wrote, the last held out."""
    splits = [load_split(root, split) for split in SPLITS]
    for parts, torchrec_parts in ((splits[:1], days[:-1]), (splits[1:], days[-1:])):
        for place in range(3):
            rows = np.concatenate([arrays[place] for arrays in parts])
            expected = np.concatenate([arrays[place] for arrays in torchrec_parts])
            assert rows.tobytes() == expected.reshape(rows.shape).astype(rows.dtype).tobytes()


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize(("edge", "threshold"), [(False, 0), (False, 3), (True, 0)])
def test_torchrec_itself_on_awkward_days(tmp_path: Path, criteo: ModuleType, edge: bool, threshold: int) -> None:
    for day, rows in enumerate((150, 90, 61)):
        (tmp_path / f"day_{day}").write_bytes(awkward_day(rows, day, edge))
    expected, _ = run_torchrec(criteo, tmp_path, 3, threshold)
    sparse = np.concatenate([np.load(tmp_path / "npy" / f"day_{day}_sparse.npy") for day in range(3)])
    assert {int(value, 16) for value in EDGES_OF_HEX} <= set(sparse.ravel().tolist())
    overrides = ["data.encoding=torchrec", f"data.frequency_threshold={threshold}", "data.chunk_bytes=7000"]
    prepare(f"data.raw={tmp_path}/day_?", f"data.path={tmp_path}/out", *overrides)
    assert_same_bytes(tmp_path / "out", expected)


@pytest.mark.medium
def test_ids_above_2_to_the_24_are_rounded(tmp_path: Path, criteo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids forced upwards on both sides: the first one is near 2^24, as if 16 million values had come before."""
    first_id = 2**24 - 5
    for day, rows in enumerate((150, 90, 61)):
        (tmp_path / f"day_{day}").write_bytes(awkward_day(rows, day, edge=False))
    expected, contiguous = run_torchrec(criteo, tmp_path, 3, threshold=3, shift=first_id - 2)
    for encoding in (Encoding.torchrec, Encoding.torchrec_fixed):
        monkeypatch.setitem(RULES, encoding, structs.replace(RULES[encoding], first_id=first_id))
        root = tmp_path / encoding.value
        overrides = [f"data.encoding={encoding.value}", "data.frequency_threshold=3"]
        manifest = prepare(f"data.raw={tmp_path}/day_?", f"data.path={root}", *overrides)
        verify_dataset(root)
        largest = np.concatenate(contiguous).max(axis=0)
        assert (np.array(list(manifest.num_embeddings.values())) > largest).all()
    assert_same_bytes(tmp_path / "torchrec", expected)
    exact = np.concatenate(contiguous[:2])[np.random.RandomState(0).permutation(240)]
    rounded = np.concatenate([day[2] for day in expected[:2]])
    assert ((rounded != exact) == (exact.astype(np.float32) != exact)).all()
    assert 0 < (rounded != exact).sum() < (exact > 2**24).sum()
    for arrays, ids in zip(expected, (exact[:150], exact[150:], contiguous[2]), strict=True):
        arrays[2] = ids  # all that torchrec_fixed has otherwise
    assert_same_bytes(tmp_path / "torchrec_fixed", expected)


# Of the files below by src/preprocess.py and src/data_loader.py of hwwang55/KGCN at 2363ca2, as label,user,item.
KGCN = {
    "train": "a05133ec8c11fc6701dfff8a18332903c765310e96fa12c0053b558cb277f3b3",
    "val": "50c1cbc97470cbda5fc822414a5b6803b4f49734bc0d82780a428943c4e94e1f",
    "test": "7806ba8789d329fc969da8fd31adaf6411ac149c5cacf5b9680863eaeefa1ca4",
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Files in the form of KGCN's: twelve users, forty artists, and two that have no entity."""
    draw, directory = random.Random(3), tmp_path / "raw"
    directory.mkdir()
    artists = [str(100 + 7 * i) for i in range(40)]
    (directory / "item_index2entity_id.txt").write_text("".join(f"{a}\t/m/{i}\n" for i, a in enumerate(artists)))
    lines = ["userID\tartistID\tweight"]
    for user in range(2, 14):
        user_artists = draw.sample([*artists, "5", "6"], draw.randint(2, 9))
        lines += [f"{user}\t{artist}\t{draw.randint(1, 999)}" for artist in user_artists]
    (directory / "user_artists.dat").write_text("\n".join(lines) + "\n")
    return directory


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.fixture
def small(raw: Path) -> Iterator[published.PublishedSet]:
    """The set of those files, served as a mirror serves them."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(raw))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, files = f"http://127.0.0.1:{server.server_port}/", digests(raw)
        names = list(published.SETS["kgcn_lastfm"].files)
        yield replace(published.SETS["kgcn_lastfm"], url=url, files={name: files[name] for name in names}, splits=KGCN)
        server.shutdown()


def test_fetched_files_become_the_rows_that_kgcn_draws(small: published.PublishedSet, tmp_path: Path) -> None:
    paths = published.write_splits(small, tmp_path / "fetched", tmp_path / "out")
    assert digests(tmp_path / "out") == {f"{split}.csv": sha256 for split, sha256 in KGCN.items()}
    assert sorted(paths) == sorted((tmp_path / "out").iterdir())
    assert {"user_artists.dat", "item_index2entity_id.txt"} <= set(digests(tmp_path / "fetched"))


def test_pairs_of_the_test_file_leave_train_and_items_are_numbered_as_they_appear(tmp_path: Path) -> None:
    """Against loops over dictionaries: drawn pairs in the order of users, of each the last one held out."""
    draw, films = random.Random(5), [str(film) for film in range(100, 160)]
    pairs = [(user, film) for user in range(1, 13) for film in draw.sample(films, draw.randint(2, 30))]
    columns = {"userID": [str(user) for user, _ in pairs], "movieID": [film for _, film in pairs]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "ratings.parquet")
    items: dict[str, int] = {}
    numbered = [(user - 1, items.setdefault(film, len(items))) for user, film in pairs]
    held_out = dict(numbered)
    negatives = {user: [draw.randrange(len(items)), item] for user, item in held_out.items()}
    ratings = "".join(f"{user}\t{item}\t5\t97830{user}\n" for user, item in held_out.items())
    (tmp_path / "test.rating").write_text(ratings)
    lines = [f"({user},{held_out[user]})\t{one}\t{other}\n" for user, (one, other) in negatives.items()]
    (tmp_path / "test.negative").write_text("".join(lines))
    paths = (tmp_path / name for name in ("ratings.parquet", "test.rating", "test.negative"))
    splits = {name: list(rows)[1:] for name, rows in published.ncf_movielens_1m(*paths).items()}
    assert splits["train"] == [(1, *pair) for pair in numbered if pair not in set(held_out.items())]
    candidates = {user: [held_out[user], *negatives[user]] for user in held_out}
    expected = [(int(not i), user, int(item)) for user, row in candidates.items() for i, item in enumerate(row)]
    assert splits["test"] == expected


def test_movielens_is_shuffled_as_numpy_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against pandas' own joins and cuts; an age's bucket is the last that begins at or below it."""
    ages = {"1": 17, "2": 18, "3": 24, "4": 56, "5": 49, "6": 50, "7": 7}
    users = [f"{user}\t{age}\tF\tother\tT8H{user}N" for user, age in ages.items()]
    ratings = [f"{user}\t{movie}\t{1 + (int(user) + movie) % 5}\t88{movie}" for movie in range(9) for user in ages]
    (tmp_path / "user").write_text("\n".join(["user_id:token\tage\tgender\toccupation\tzip_code", *users, ""]))
    (tmp_path / "inter").write_text("\n".join(["user_id:token\titem\trating\ttimestamp", *ratings, ""]))
    monkeypatch.setattr(published, "TRAIN_ROWS", 50)
    split_rows = published.tfrs_movielens_100k(tmp_path / "inter", tmp_path / "user")
    splits = {name: list(rows) for name, rows in split_rows.items()}
    table = pd.read_csv(tmp_path / "inter", sep="\t", names=["user", "movie", "rating", "time"], skiprows=1)
    table["age"] = table["user"].astype(str).map(ages)
    edges = [1, 18, 25, 35, 45, 50, 56, 200]
    table["bucket"] = pd.cut(table["age"], edges, right=False, labels=edges[:-1])
    shuffled = table.iloc[np.random.RandomState(42).permutation(len(table))]
    expected = [
        (str(row.rating), str(row.movie), str(row.user), "F", f"T8H{row.user}N", "other", row.bucket)
        for row in shuffled.itertuples()
    ]
    assert [len(rows) for rows in splits.values()] == [51, 14]
    assert splits["train"][1:] + splits["test"][1:] == expected
