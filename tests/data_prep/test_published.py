"""The encodings that repeat other programs: against these programs' own functions on rows made here."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, MinMaxScaler

from data_prep.config import RULES
from data_prep.dataset.options import Encoding
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import SPLITS, load_split, prepare

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
        monkeypatch.setitem(RULES, encoding, replace(RULES[encoding], first_id=first_id))
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


def test_amd_blog_equals_scikit_learn(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blog = RULES[Encoding.amd_blog]
    assert blog.max_categories == 10_000
    monkeypatch.setitem(RULES, Encoding.amd_blog, replace(blog, max_categories=300))
    root = tmp_path / "out"
    manifest = prepare(f"data.raw={rows}", f"data.path={root}", "data.encoding=amd_blog")
    labels, dense, sparse = oracle.parse(rows.read_bytes())
    dense = np.where(dense == oracle.MISSING, 0, dense)
    columns = [column for column in range(26) if len(np.unique(sparse[:, column])) <= 300]
    assert 10 < len(columns) < 26
    assert manifest.schema["sparse"] == [f"cat_{column}" for column in columns]
    ids = np.stack([LabelEncoder().fit_transform([f"{v:08x}" for v in sparse[:, c]]) for c in columns], axis=1)
    scaled = MinMaxScaler().fit_transform(dense.astype(np.float64)).astype(np.float32)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=42)
    for split, row_numbers in (("train", train), ("test", test), ("val", [])):
        arrays = load_split(root, split)
        np.testing.assert_array_equal(arrays[0], labels[row_numbers])
        np.testing.assert_array_equal(arrays[1], scaled[row_numbers].reshape(-1, 13))
        np.testing.assert_array_equal(arrays[2], ids[row_numbers].reshape(-1, len(columns)))
    assert list(manifest.num_embeddings.values()) == (ids.max(axis=0) + 1).tolist()
    verify_dataset(root)
