"""MLPerf v2's multi-hot data written to disk."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.dataset.format import load_manifest, open_shard
from data_prep.dataset.multi_hot import MLPERF_SIZES, MultiHot, MultiHotTables, table_path
from data_prep.io import MAPPED_BYTES
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import SPLITS, load_split, prepare, write_rows
from tests.error_lines import refused
from tests.reference import multi_hot_tables

HASHED = ("data.encoding=hash", "data.max_ind_range=50")


def make(directory: Path, name: str, *overrides: str) -> Path:
    raw, _ = write_rows(directory, 300, seed=4)
    prepare(raw, f"data.path={directory}/{name}", "data.chunk_bytes=20000", *overrides)
    return directory / name


DRAWS = [
    ("uniform", HASHED),
    ("pareto", ("data.split.method=random", "data.max_ind_range=40", "data.multi_hot.seed=5")),
    ("uniform", ("data.encoding=torchrec", "data.max_ind_range=60")),
]


@pytest.mark.slow("examples")
@pytest.mark.parametrize(("distribution", "more"), DRAWS)
def test_every_id_becomes_its_bag(tmp_path: Path, distribution: str, more: tuple[str, ...]) -> None:
    one_hot = make(tmp_path, "one_hot", *[key for key in more if "seed" not in key])
    expansion = ["data.multi_hot.sizes=mlperf_v2", f"data.multi_hot.distribution={distribution}"]
    root = make(tmp_path, "multi_hot", *more, *expansion)
    manifest = verify_dataset(root)
    assert manifest.num_embeddings == load_manifest(one_hot).num_embeddings
    assert manifest.ragged == [f"cat_{i}" for i, size in enumerate(MLPERF_SIZES) if size > 1]
    assert manifest.encoding["multi_hot"]["sizes"] == list(MLPERF_SIZES)
    seed = 5 if any("seed" in key for key in more) else 0
    tables = multi_hot_tables(list(manifest.num_embeddings.values()), MLPERF_SIZES, distribution, seed)
    for split in SPLITS:
        labels, dense, ids = load_split(one_hot, split)
        shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
        np.testing.assert_array_equal(np.concatenate([shard.labels[:, 0] for shard in shards]), labels)
        np.testing.assert_array_equal(np.concatenate([shard.dense for shard in shards]), dense)
        single = [i for i, size in enumerate(MLPERF_SIZES) if size == 1]
        np.testing.assert_array_equal(np.concatenate([shard.sparse for shard in shards]), ids[:, single])
        for place, name in enumerate(manifest.ragged):
            feature = int(name.removeprefix("cat_"))
            bags = np.concatenate([shard.bags[place].ids for shard in shards]).reshape(-1, MLPERF_SIZES[feature])
            np.testing.assert_array_equal(bags, tables[feature][ids[:, feature]])
            assert all((shard.bags[place].lengths == MLPERF_SIZES[feature]).all() for shard in shards)


@pytest.mark.medium
def test_another_choice_is_another_dataset(tmp_path: Path) -> None:
    sizes = "data.multi_hot.sizes=mlperf_v2"
    make(tmp_path, "out", *HASHED, sizes)
    make(tmp_path, "out", *HASHED)  # what is not given is not compared
    message = r"multi_hot\.seed is 0 there, 1 here"
    refused(message, make, tmp_path, "out", *HASHED, sizes, "data.multi_hot.seed=1")
    others, message = f"data.multi_hot.sizes={[2] * 26}", r"multi_hot\.sizes is \[.*\] there, \[.*\] here"
    refused(message, make, tmp_path, "out", *HASHED, others.replace(" ", ""))


def test_room_for_the_tables_is_asked_for_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 10**8))
    overrides = ["data.encoding=hash", "data.multi_hot.sizes=mlperf_v2"]
    rows = 1_000_000  # of each table: 4 * (214 - 12) MB
    message = r"812\.0 MB of it for multi-hot tables, 500\.0 MB free.* another data\.path"
    refused(message, make, tmp_path, "out", *overrides, f"data.max_ind_range={rows}")
    assert not (tmp_path / "out").exists()
    make(tmp_path, "out", *overrides, "data.max_ind_range=50")


def test_room_for_the_tables_where_their_sizes_are_known_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bags = MultiHot((2, 1))
    first = MultiHotTables.open(tmp_path, [100, 100], bags).tables[0]
    (directory,) = tmp_path.iterdir()
    (directory / "tables.json").unlink()
    partial_file = table_path(directory, 0).with_name("0.npy.machine-1-2.part")  # as of a process killed while it drew
    partial_file.touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=799))
    message = r"multi-hot tables need 800 B, 799 B are free; .* choose another data\.multi_hot\.directory"
    refused(message, MultiHotTables.open, tmp_path, [100, 100], bags, "data.multi_hot.directory")
    assert not partial_file.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=800))
    np.testing.assert_array_equal(MultiHotTables.open(tmp_path, [100, 100], bags).tables[0], first)
    table_path(directory, 0).write_bytes(b"cut short")
    np.testing.assert_array_equal(MultiHotTables.open(tmp_path, [100, 100], bags).tables[0], first)


RESIDENT = """
import sys
import numpy as np
from data_prep.io import take_mapped

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

rows = np.load(sys.argv[1], mmap_mode="r")
ids = np.random.default_rng(0).integers(0, len(rows), 3000).astype(np.int32)
before = peak()
found = take_mapped(rows, ids)
print(peak() - before)
assert (found == ids[:, None] * np.int32(100) + np.arange(100, dtype=np.int32)).all()
assert take_mapped(rows, ids[:0]).shape == (0, 100)
"""


@pytest.mark.medium
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_a_large_table_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    np.save(path, np.arange(40_000_000, dtype=np.int32).reshape(-1, 100))
    process = subprocess.run([sys.executable, "-c", RESIDENT, path], check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) < MAPPED_BYTES + (16 << 20) < path.stat().st_size / 3


@pytest.mark.medium
@given(st.data())
def test_bags_are_the_rows_of_their_table(data: st.DataObject) -> None:
    """Whole vectors are copied, also where table and output end."""
    size, rows = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 30))
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=50)), np.int32)
    table = np.arange(rows * size, dtype=np.int32).reshape(rows, size)
    tables = MultiHotTables([None, table])
    guarded = np.full((len(ids) + 2) * size, -1, np.int32)
    tables.expand(1, ids, guarded[size:-size])
    np.testing.assert_array_equal(guarded[size:-size].reshape(-1, size), table[ids])
    assert (guarded[[*range(size), *range(-size, 0)]] == -1).all()
    np.testing.assert_array_equal(tables.expand(1, np.stack([ids, ids], 1)[:, 0]), table[ids])
    for beyond in (-1, rows, 2**31 - 1):
        with pytest.raises(IndexError, match="an id is not in its multi-hot table"):
            tables.expand(1, np.array([*ids, beyond], np.int32))


def test_multi_hot_tables_do_not_depend_on_the_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data_prep.dataset import multi_hot

    rows, bags = [50, 7, 400], MultiHot((3, 1, 5), seed=7)
    whole = MultiHotTables.open(tmp_path / "a", rows, bags)
    monkeypatch.setattr(multi_hot, "BLOCK_VALUES", 64)
    parts = MultiHotTables.open(tmp_path / "b", rows, bags)
    for one, other in zip(whole.tables, parts.tables, strict=True):
        np.testing.assert_array_equal(one, other)
    refused("2 given for 3 features", MultiHotTables.open, tmp_path / "c", rows, MultiHot((1, 2)))
