"""To and from the files of other programs."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.compose import compose_config
from common.errors import UserError
from data_prep.config import CONFIG_DIRECTORY
from data_prep.dataset.format import load_manifest, shard_path
from data_prep.encoding import Encoder
from data_prep.job import lock_work
from data_prep.verify import verify_dataset
from extensions.exchange.__main__ import InterchangeConfig, export_bin, export_npy, import_bin, import_npy, main
from tests.data_prep import oracle, tables
from tests.data_prep.conftest import load_split, prepare
from tests.data_prep.test_published import awkward_day, run_torchrec
from tests.data_prep.test_refusals import files, set_up
from tests.error_lines import refused
from tests.once import made_once

SPLITS = ("train", "val", "test")


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days, and the dataset `out` of them."""
    return made_once(tmp_path_factory, "of_refusals", set_up)


def make(directory: Path, *overrides: str, rows: tuple[int, ...] = (150, 90, 61), edge: bool = False) -> Path:
    for day, count in enumerate(rows):
        (directory / f"day_{day}").write_bytes(awkward_day(count, day, edge=edge))
    prepare(f"data.raw={directory}/day_?", f"data.path={directory}/out", "data.chunk_bytes=9000", *overrides)
    return directory / "out"


def exchange(*arguments: str) -> None:
    """Do what the command does."""
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


def test_npy_of_a_single_file(tmp_path: Path) -> None:
    root = make(tmp_path, rows=(80,))
    files = export_npy(root, load_manifest(root), tmp_path)
    assert len(files) == 6
    import_npy(tmp_path, tmp_path / "back")
    assert_same(tmp_path / "back", root)


def bin_records(directory: Path) -> list[NDArray[Any]]:
    """The records of every split's file."""
    return [np.fromfile(directory / f"terabyte_processed_{split}.bin", np.int32).reshape(-1, 40) for split in SPLITS]


@pytest.mark.medium
@pytest.mark.parametrize("encoding", ["hash", "torchrec_fixed"])
def test_bin_both_ways(tmp_path: Path, encoding: str) -> None:
    """With integers that float32 cannot hold; of `torchrec_fixed` the train split's rows are shuffled."""
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


@pytest.mark.medium
def test_an_import_waits_for_no_other_job(tmp_path: Path) -> None:
    root = make(tmp_path)
    (tmp_path / "days").mkdir()
    export_npy(root, load_manifest(root), tmp_path / "days")
    with lock_work(tmp_path / "back"), pytest.raises(UserError, match="another job is writing here"):
        import_npy(tmp_path / "days", tmp_path / "back")
    import_npy(tmp_path / "days", tmp_path / "back")
    assert not (tmp_path / "back" / ".work").exists()


@pytest.mark.medium
def test_a_file_cut_off_by_an_error_is_not_there(tmp_path: Path) -> None:
    root = make(tmp_path, "data.dense_transform=raw", "data.max_ind_range=30")
    manifest = load_manifest(root)
    shard = manifest.splits["val"].shards[0]
    dense = np.load(shard_path(root, "val", shard.name, "dense"), mmap_mode="r+")
    dense[0, 0] = -(2.0**24)  # which 2^24 + 1 would have become as well
    dense.flush()
    (tmp_path / "bin").mkdir()
    refused("split val has an integer of 2\\^24 or more", export_bin, root, manifest, tmp_path / "bin")
    assert not [path for path in (tmp_path / "bin").iterdir() if "val" in path.name]


def test_bin_files_cut_short(tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"terabyte_processed_{split}.bin").write_bytes(bytes(161))
    refused("161 bytes are not whole records of 160", import_bin, tmp_path, tmp_path / "back", None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("data.path=out", "exchange.to"),
        ("data.path=out exchange.source=foreign", "no day_N_labels.npy|already"),
        ("data.path=none exchange.to=new", "no dataset here"),
        ("data.path=out exchange.to=new exchange.format=bin", "integers are transformed"),
        ("data.path=imported exchange.source=days data.dense_transform=raw", r"^data\.dense_transform: has no eff"),
        ("data.path=imported exchange.source=days data.dense_transform=raw exchange.format=bin", "no such file"),
        ("data.path=imported exchange.source=days data.workers=2", r"data\.workers|'workers' not in"),
    ],
)
def test_a_refusal_leaves_files_as_they_were(
    state: Path, monkeypatch: pytest.MonkeyPatch, keys: str, message: str
) -> None:
    monkeypatch.chdir(state)
    before = {name: digest for name, digest in files(state).items() if not name.endswith("lock")}
    refused(message, exchange, *keys.split())
    assert {name: digest for name, digest in files(state).items() if not name.endswith("lock")} == before


def test_rows_with_sample_weights_are_refused(tmp_path: Path) -> None:
    lines = "".join(f"{row % 2},u{row},{row}\n" for row in range(40))
    schema = "label: label\nsparse: [user]\nweight: weight\n"
    tables.make(tmp_path, "label,user,weight\n" + lines, schema, *tables.HASHED)
    with pytest.raises(UserError, match=r"its rows have sample weights \(weight\), which these files cannot hold"):
        exchange(f"data.path={tmp_path}/out", f"exchange.to={tmp_path}/new")
    assert not (tmp_path / "new").exists()


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
