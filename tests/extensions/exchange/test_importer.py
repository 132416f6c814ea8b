"""Files of other programs that are not what they should be: each is refused by name, row and column."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep.dataset.format import SPLITS
from data_prep.verify import verify_dataset
from extensions.exchange.__main__ import import_bin, import_npy
from tests.data_prep.conftest import load_split
from tests.error_lines import refused

ROWS = (40, 30)


def write_days(directory: Path) -> None:
    """Two days as TorchRec writes them."""
    rng = np.random.default_rng(0)
    directory.mkdir()
    for day, rows in enumerate(ROWS):
        save(directory, day, "labels", rng.integers(0, 2, (rows, 1)).astype(np.int32))
        save(directory, day, "dense", rng.random((rows, 13), np.float32))
        save(directory, day, "sparse", rng.integers(0, 9, (rows, 26)).astype(np.int32 if day == 0 else np.int64))


def save(directory: Path, day: int, kind: str, array: Any) -> None:
    np.save(directory / f"day_{day}_{kind}.npy", array, allow_pickle=array.dtype == object)


def change(day: int, kind: str, edit: Callable[..., Any] | type) -> Callable[..., Any]:
    """Damage that gives an array's file what `edit` makes of the array."""

    def damage(directory: Path) -> None:
        save(directory, day, kind, edit(np.load(directory / f"day_{day}_{kind}.npy")))

    return damage


def put(day: int, kind: str, place: tuple[int, int], value: Any) -> Callable[[Path], None]:
    """Damage that gives an array another value at one place."""

    def edit(array: NDArray[Any]) -> NDArray[Any]:
        array[place] = value
        return array

    return change(day, kind, edit)


def write(name: Any, content: Any) -> Any:
    """Damage that makes a file's bytes others."""
    return lambda directory: (directory / name).write_bytes(content((directory / name).read_bytes()))


def make_directory(directory: Path) -> None:
    (directory / "day_0_dense.npy").unlink()
    (directory / "day_0_dense.npy").mkdir()


DAMAGE = {
    "directory": (make_directory, r"day_0_dense\.npy: not readable as a NumPy file"),
    "nothing": (lambda d: [path.unlink() for path in d.iterdir()], r"no day_N_labels\.npy"),
    "empty": (write("day_0_labels.npy", lambda _: b""), r"day_0_labels\.npy: not readable as a NumPy file"),
    "nonsense": (write("day_1_sparse.npy", lambda _: b"nonsense"), r"day_1_sparse\.npy: not readable as a NumPy file"),
    "pickle": (write("day_0_labels.npy", lambda _: pickle.dumps([1])), r"day_0_labels\.npy: not readable as a NumPy"),
    "scalar": (change(0, "labels", lambda _: np.int32(1)), r"day_0_labels\.npy: an array \(\), not \(rows, 1\)"),
    "columns": (change(1, "sparse", lambda a: a[:, 1:]), r"day_1_sparse\.npy: an array \(30, 25\), not \(rows, 26\)"),
    "fewer dense rows": (
        change(0, "dense", lambda a: a[:3]),
        r"day_0_dense\.npy: 3 rows, but day_0_labels\.npy has 40",
    ),
    "float labels": (change(0, "labels", np.float32), r"day_0_labels\.npy: float32, not integers"),
    "label": (put(0, "labels", (7, 0), 2), r"day_0_labels\.npy: row 8, column label: 2: a label is neither 0 nor 1"),
    "nan": (put(0, "dense", (9, 4), np.nan), r"day_0_dense\.npy: row 10, column int_4: nan: not a finite number"),
    "negative id": (put(0, "sparse", (5, 25), -3), r"day_0_sparse\.npy: row 6, column cat_25: -3: an id is negative"),
    "large id": (put(1, "sparse", (29, 0), 1 << 31), r"day_1_sparse\.npy: row 30, column cat_0: 2147483648: an id is"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_days_that_are_not_what_they_should_be(tmp_path: Path, damage: Callable[..., Any], message: str) -> None:
    write_days(tmp_path / "days")
    damage(tmp_path / "days")
    refused(message, import_npy, tmp_path / "days", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_order_and_size_of_numbers_do_not_matter(tmp_path: Path) -> None:
    write_days(tmp_path / "days")
    for kind, edit in (("labels", np.uint8), ("dense", np.asfortranarray), ("sparse", np.int64)):
        change(0, kind, edit)(tmp_path / "days")
    import_npy(tmp_path / "days", tmp_path / "back")
    verify_dataset(tmp_path / "back")
    for actual, kind in zip(load_split(tmp_path / "back", "train"), ("labels", "dense", "sparse"), strict=True):
        expected = np.load(tmp_path / "days" / f"day_0_{kind}.npy")
        np.testing.assert_array_equal(actual.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [(0, -1, "column label: -1: a label is neither 0 nor 1"), (39, -7, "column cat_25: -7: an id is negative")],
)
def test_records_that_are_not_what_they_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: int, value: int, message: str
) -> None:
    monkeypatch.setattr("extensions.exchange.__main__.SHARD_ROWS", 4)
    for split in SPLITS:
        records = np.ones((10, 40), np.int32)
        if split == "val":
            records[6, column] = value
        records.tofile(tmp_path / f"terabyte_processed_{split}.bin")
    refused(rf"terabyte_processed_val\.bin: row 7, {message}", import_bin, tmp_path, tmp_path / "back", None)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (["day_2_labels.npy"], "day_2_labels.npy: no such file beside other files of day 2"),
        (["day_1_labels.npy", "day_1_dense.npy", "day_1_sparse.npy"], "day_1_labels.npy: no such file between other"),
        (["day_0_sparse.npy"], "day_0_sparse.npy: no such file beside other files of day 0"),
    ],
)
def test_a_day_that_is_not_whole_is_missed(tmp_path: Path, gone: list[str], message: str) -> None:
    days = tmp_path / "days"
    days.mkdir()
    for day in range(3):
        np.save(days / f"day_{day}_labels.npy", np.arange(30, dtype=np.int32)[:, None] % 2)
        np.save(days / f"day_{day}_dense.npy", np.full((30, 13), day, np.float32))
        np.save(days / f"day_{day}_sparse.npy", np.full((30, 26), day, np.int32))
    for name in gone:
        (days / name).rename(tmp_path / name)
    refused(message, import_npy, days, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for name in gone:
        (tmp_path / name).rename(days / name)
    assert import_npy(days, tmp_path / "out").rows == 90
