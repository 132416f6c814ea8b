"""To and from the files of other programs; those that are not what they should be are refused by name and place."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.compose import compose_config
from common.errors import UserError
from data_prep.config import CONFIG_DIRECTORY
from data_prep.dataset.format import SPLITS, load_manifest
from data_prep.encoding import Encoder
from data_prep.verify import verify_dataset
from extensions.exchange.__main__ import InterchangeConfig, export_bin, import_bin, import_npy, main
from tests.data_prep import oracle
from tests.data_prep.conftest import load_split, prepare
from tests.data_prep.test_other_programs import awkward_day, run_torchrec
from tests.data_prep.test_refusals import files, set_up
from tests.error_lines import refused


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("of_refusals")
    set_up(directory)
    return directory


def make(directory: Path, *overrides: str, rows: tuple[int, ...] = (150, 90, 61), edge: bool = False) -> Path:
    for day, count in enumerate(rows):
        (directory / f"day_{day}").write_bytes(awkward_day(count, day, edge=edge))
    prepare(f"data.raw={directory}/day_?", f"data.path={directory}/out", "data.chunk_bytes=9000", *overrides)
    return directory / "out"


def exchange(*arguments: str) -> None:
    assert main(compose_config(InterchangeConfig, CONFIG_DIRECTORY, arguments, "schema")) == 0


def assert_same(one: Path, other: Path) -> None:
    for split in SPLITS:
        for actual, expected in zip(load_split(one, split), load_split(other, split), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.medium
def test_npy_files_are_torchrec_s_byte_for_byte(tmp_path: Path, criteo: ModuleType) -> None:
    root = make(tmp_path, "data.encoding=torchrec")
    exchange(f"data.path={root}", f"exchange.to={tmp_path}/days")
    run_torchrec(criteo, tmp_path, 3, threshold=0)
    for day in range(3):
        for kind in ("labels", "dense", "sparse"):
            name = f"day_{day}_{kind}.npy"
            assert (tmp_path / "days" / name).read_bytes() == (tmp_path / "shuffled" / name).read_bytes(), name
    exchange(f"data.path={tmp_path}/back", f"exchange.source={tmp_path}/days")
    assert_same(tmp_path / "back", root)
    verify_dataset(tmp_path / "back")
    refused("imported", Encoder.load, tmp_path / "back")


def bin_records(directory: Path) -> list[NDArray[Any]]:
    return [np.fromfile(directory / f"terabyte_processed_{split}.bin", np.int32).reshape(-1, 40) for split in SPLITS]


@pytest.mark.medium
@pytest.mark.parametrize("encoding", ["hash", "torchrec_fixed"])
def test_bin_both_ways(tmp_path: Path, encoding: str) -> None:
    overrides = [f"data.encoding={encoding}", "data.max_ind_range=1000"]
    root = make(tmp_path, "data.dense_transform=integers", *overrides, edge=True)
    (tmp_path / "bin").mkdir()
    export_bin(root, load_manifest(root), tmp_path / "bin")
    text = b"".join((tmp_path / f"day_{day}").read_bytes() for day in range(3))
    labels, _, sparse = oracle.parse(text)
    dense = np.array([[int(x or 0) for x in line.split(b"\t")[1:14]] for line in text.splitlines()])
    assert (dense != dense.astype(np.float32)).any()
    order = np.arange(301)
    ids = sparse % 1000
    if encoding == "torchrec_fixed":
        order[:240] = np.random.RandomState(0).permutation(240)
        ids = np.concatenate([load_split(root, split)[2] for split in SPLITS])[np.argsort(order)]
    expected = np.concatenate((labels[:, None], dense, ids), axis=1).astype(np.int32)[order]
    records = bin_records(tmp_path / "bin")
    np.testing.assert_array_equal(np.concatenate(records), expected)
    assert [len(record) for record in records] == [240, 31, 30]
    verify_dataset(root)
    arguments = [f"exchange.source={tmp_path}/bin", "exchange.format=bin"]
    exchange(f"data.path={tmp_path}/exact", "data.dense_transform=integers", *arguments)
    verify_dataset(tmp_path / "exact")
    assert_same(tmp_path / "exact", root)
    exchange(f"data.path={tmp_path}/exact", f"exchange.to={tmp_path}/again", "exchange.format=bin")
    for second, first in zip(bin_records(tmp_path / "again"), records, strict=True):
        np.testing.assert_array_equal(second, first)
    import_bin(tmp_path / "bin", tmp_path / "back", None)
    verify_dataset(tmp_path / "back")
    splits = [load_split(tmp_path / "back", s) for s in SPLITS]
    columns = [np.concatenate(parts) for parts in zip(*splits, strict=True)]
    np.testing.assert_array_equal(columns[0], expected[:, 0])
    np.testing.assert_array_equal(columns[1], oracle.encode_dense(expected[:, 1:14]))
    np.testing.assert_array_equal(columns[2], expected[:, 14:])
    with pytest.raises(UserError, match=r"data\.dense_transform=integers"):
        export_bin(tmp_path / "back", load_manifest(tmp_path / "back"), tmp_path / "bin")


@pytest.mark.parametrize("form", ["bin", "npy"])
def test_an_export_that_fails_midway_leaves_the_older_one(tmp_path: Path, state: Path, form: str) -> None:
    keys = ["data.dense_transform=integers", "data.max_ind_range=9", f"data.path={tmp_path}/out"]
    prepare(f"data.raw={state}/days", *keys)
    export = [f"data.path={tmp_path}/out", f"exchange.to={tmp_path}/new", f"exchange.format={form}"]
    exchange(*export)
    test = tmp_path / "out/test/00000.dense.npy"
    test.write_bytes(test.read_bytes()[:200])
    labels = tmp_path / "out/train/00000.labels.npy"
    np.save(labels, 1 - np.load(labels))
    before = files(tmp_path)
    with pytest.raises(UserError):
        exchange(*export)
    assert files(tmp_path) == before


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
    return lambda directory: (directory / name).write_bytes(content((directory / name).read_bytes()))


DAMAGE = {
    "nonsense": (write("day_1_sparse.npy", lambda _: b"nonsense"), r"day_1_sparse\.npy: not readable as a NumPy file"),
    "columns": (change(1, "sparse", lambda a: a[:, 1:]), r"day_1_sparse\.npy: an array \(30, 25\), not \(rows, 26\)"),
    "fewer dense rows": (
        change(0, "dense", lambda a: a[:3]),
        r"day_0_dense\.npy: 3 rows, but day_0_labels\.npy has 40",
    ),
    "label": (put(0, "labels", (7, 0), 2), r"day_0_labels\.npy: row 8, column label: 2: a label is neither 0 nor 1"),
    "nan": (put(0, "dense", (9, 4), np.nan), r"day_0_dense\.npy: row 10, column int_4: nan: not a finite number"),
    "negative id": (put(0, "sparse", (5, 25), -3), r"day_0_sparse\.npy: row 6, column cat_25: -3: an id is negative"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_days_that_are_not_what_they_should_be(tmp_path: Path, damage: Callable[..., Any], message: str) -> None:
    write_days(tmp_path / "days")
    damage(tmp_path / "days")
    refused(message, import_npy, tmp_path / "days", tmp_path / "back")
    assert not (tmp_path / "back").exists()
