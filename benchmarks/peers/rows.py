"""The rows and the model that all meet, and the files in which each program wants them.

Labels are drawn from a known model (docs/synthetic.md), so the AUC of the true probabilities is known. Everything is
in `work`: `rows/` has plain arrays, `clickwork/` a dataset of ours, `torchrec/` and `dlrm_s/` the layouts of
facebookresearch/dlrm's two programs, of 24 days; those evaluate on one half of the last, so it holds all rows twice.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_DENSE, NUM_SPARSE, DIM = 13, 26, 16
DENSE_ARCH, OVER_ARCH = (512, 256, 64, DIM), (512, 256, 1)
EPS = 1e-10  # of Adagrad, where a program takes one
HELD_OUT = 0.08  # of the rows that are generated; half of it is `test`
DAYS = 24


class Rows(NamedTuple):
    """labels [n] float32, dense [n, 13] float32, sparse [n, 26] int64."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int64]


def load_rows(work: Path, split: str) -> Rows:
    """The rows of `train` or `test`."""
    return Rows(*(np.load(work / "rows" / f"{split}_{kind}.npy") for kind in Rows._fields))


def load_tables(work: Path) -> list[int]:
    """Rows of each table."""
    return list(json.loads((work / "rows/about.json").read_bytes())["tables"])


def make_rows(work: Path, rows: int, max_cardinality: int) -> float:
    """Write `rows` of training and about a twentieth of them for evaluation; return the best AUC on the latter."""
    from data_prep.dataset.format import load_manifest  # the peers' interpreter need not have what it needs

    source, total = work / "generated", int(rows * 1.02 / (1 - HELD_OUT)) + 100
    command = [
        sys.executable,
        "-m",
        "data_prep",
        "data.source=synthetic",
        f"data.path={source}",
        "data.synthetic.drift=0",
        f"data.synthetic.rows={total}",
        f"data.split.held_out={HELD_OUT}",
        f"data.synthetic.max_cardinality={max_cardinality}",
        "data.dense_transform=log_float32",
    ]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    manifest = load_manifest(source)
    tables = list(manifest.num_embeddings.values())
    splits = {"train": _read(source, "train", rows), "test": _read(source, "val", None)}
    (work / "rows").mkdir()
    (work / "rows/about.json").write_text(json.dumps({"tables": tables}), encoding="utf-8")
    for split, arrays in splits.items():
        for kind, array in arrays._asdict().items():
            np.save(work / "rows" / f"{split}_{kind}.npy", array)
    write_clickwork(work / "clickwork", splits, manifest.num_embeddings)
    write_torchrec(work / "torchrec", splits)
    write_dlrm_s(work / "dlrm_s", splits, tables)
    return float(manifest.extra["bayes"]["splits"]["val"]["sampled_auc"])


def _read(root: Path, split: str, count: int | None) -> Rows:
    from data_prep.dataset.format import load_manifest, open_shard

    manifest = load_manifest(root)
    shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
    labels, dense, sparse = (
        np.concatenate([getattr(shard, kind) for shard in shards])[:count] for kind in Rows._fields
    )
    assert count is None or len(labels) == count
    return Rows(labels[:, 0].astype(np.float32), dense, sparse.astype(np.int64))


def write_clickwork(root: Path, splits: dict[str, Rows], num_embeddings: dict[str, int]) -> None:
    """A dataset of Clickwork's with exactly these rows; `test` is its val."""
    from data_prep.dataset.format import Manifest, ShardArrays, Split, save_manifest, write_shard

    clickwork_splits = {}
    for name, rows in splits.items():
        split_name = {"train": "train", "test": "val"}[name]
        arrays = ShardArrays(rows.labels[:, None].astype(np.int32), rows.dense, rows.sparse.astype(np.int32))
        shard = write_shard(root, split_name, "00000", arrays)
        clickwork_splits[split_name] = Split(len(rows.labels), float(rows.labels.mean()), [shard])
    save_manifest(
        root,
        Manifest(
            schema={"label": "label", "dense": [f"int_{i}" for i in range(NUM_DENSE)], "sparse": list(num_embeddings)},
            encoding={"name": "benchmark"},
            num_embeddings=num_embeddings,
            splits={**clickwork_splits, "test": Split(0, None, [])},
            sources=[],
            rows=sum(split.rows for split in clickwork_splits.values()),
            label_rate=float(splits["train"].labels.mean()),
            tool_version="benchmark",
        ),
    )


def days_of(splits: dict[str, Rows]) -> list[Rows]:
    """The training rows in all days but the last, and those of evaluation twice in that."""
    parts = [np.array_split(array, DAYS - 1) for array in splits["train"]]
    last = Rows(*(np.concatenate([array, array]) for array in splits["test"]))
    return [*(Rows(*arrays) for arrays in zip(*parts, strict=True)), last]


def write_torchrec(target: Path, splits: dict[str, Rows]) -> None:
    """What torchrec_dlrm/dlrm_main.py reads with --in_memory_binary_criteo_path."""
    target.mkdir()
    for day, rows in enumerate(days_of(splits)):
        np.save(target / f"day_{day}_labels.npy", rows.labels[:, None].astype(np.int32))
        np.save(target / f"day_{day}_dense.npy", rows.dense)
        np.save(target / f"day_{day}_sparse.npy", rows.sparse.astype(np.int32))


def write_dlrm_s(target: Path, splits: dict[str, Rows], tables: list[int]) -> None:
    """What dlrm_s_pytorch.py reads with --memory-map; it takes the logarithm of the integers itself."""
    target.mkdir()
    days = days_of(splits)
    for day, rows in enumerate(days):
        integers = np.rint(np.expm1(rows.dense.astype(np.float64))).astype(np.int32)
        ids = rows.sparse.astype(np.int32)
        np.savez(target / f"day_{day}_reordered.npz", X_int=integers, X_cat=ids, y=rows.labels.astype(np.int32))
    np.savez(target / "day_day_count.npz", total_per_file=np.array([len(rows.labels) for rows in days]))
    np.savez(target / "day_fea_count.npz", counts=np.array(tables))
