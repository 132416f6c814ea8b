"""Make the arrays of the reference programs again, from rows generated here (README.md in this folder).

    python -m tests.golden.reference.make rows                  # rows.tsv
    python -m tests.golden.reference.make dlrm DLRM             # dlrm_kaggle.npz, by facebookresearch/dlrm's checkout
    python -m tests.golden.reference.make statistics TSV        # criteo_statistics.json, of real rows

`dlrm` needs a Python with numpy<2 (the reference stores 32-bit hashes as int32, which NumPy 2 refuses) and torch.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROWS = HERE / "rows.tsv"
DAYS = (400, 400, 199)  # rows
BATCH = 128
KAGGLE_SEED = 123  # dlrm_s_pytorch.py's --numpy-rand-seed


def make_rows() -> bytes:
    """Criteo's format: skewed categories, missing fields, negative and large integers, hashes of all 32 bits."""
    rng = np.random.default_rng(2026)
    rows = sum(DAYS)
    cardinalities = np.geomspace(3, 2000, 26).astype(int)[rng.permutation(26)]
    columns = [(rng.random(rows) < 0.25).astype(int).astype(str)]
    for column in range(13):
        integers = np.floor(rng.lognormal(1 + column / 4, 1.5, rows)).astype(np.int64) - (2 if column == 1 else 0)
        if column == 4:
            integers[rng.integers(0, rows, 9)] = 2**24 + 1  # not a float32
        columns.append(np.where(rng.random(rows) < 0.04 * column, "", integers.astype(str)))
    for column, cardinality in enumerate(cardinalities):
        hashes = rng.integers(1, 2**32, cardinality)
        values = [f"{value:08x}" for value in hashes[(rng.zipf(1.2, rows) - 1) % cardinality]]
        columns.append(np.where(rng.random(rows) < 0.3 * (column % 3 == 2), "", values))
    return "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)).encode()


def make_dlrm(directory: Path, checkout: Path) -> dict[str, Any]:
    """Convert the rows by facebookresearch/dlrm's Kaggle path, and return them with its first training batch."""
    if int(np.__version__.partition(".")[0]) >= 2:
        raise SystemExit(f"NumPy is {np.__version__}; the reference needs a Python with numpy<2")
    sys.path.insert(0, str(checkout))
    pytorch, utils = (importlib.import_module(name) for name in ("dlrm_data_pytorch", "data_utils"))
    raw = directory / "rows.txt"
    shutil.copy(ROWS, raw)
    processed = utils.getCriteoAdData(str(raw), "processed", days=7)
    with np.load(processed) as data:
        arrays = {"X_cat": data["X_cat"], "X_int": data["X_int"], "y": data["y"], "counts": data["counts"]}
    with np.load(directory / "rows_day_count.npz") as data:
        arrays["total_per_file"] = data["total_per_file"]
    raw_values = []
    for day in range(7):
        with np.load(directory / f"rows_day_{day}.npz") as data:
            raw_values.append(data["X_cat_t"].T)
    arrays["X_cat_raw_int32"] = np.concatenate(raw_values)
    arrays["X_cat_int64"] = arrays["X_cat"].astype(np.int64)
    arrays["X_int_log1p_f32"] = np.log(arrays["X_int"].astype(np.float32) + 1)
    for column in range(26):
        with np.load(directory / f"rows_fea_dict_{column}.npz") as data:
            arrays[f"dict_{column}"] = data["unique"]
    for split in ("train", "val", "test"):
        np.random.seed(KAGGLE_SEED)  # noqa: NPY002  # what the reference draws from
        dataset = pytorch.CriteoDataset("kaggle", -1, 0.0, "total", split, str(raw), str(processed))
        arrays |= {f"{split}_{name}": np.array(getattr(dataset, name)) for name in ("y", "X_int", "X_cat")}
        if split == "train":
            batch = pytorch.collate_wrapper_criteo_offset([dataset[row] for row in range(BATCH)])
            names = ("X", "offsets", "idx", "T")
            arrays |= {f"train_b0_{name}": tensor.numpy() for name, tensor in zip(names, batch, strict=True)}
    return arrays


def make_statistics(path: Path) -> dict[str, Any]:
    """Figures of real rows that generated ones are compared with: no row can be told from them.

    Of each integer: the share present and its distribution at up to 64 values. Of each category: the share present, and
    the chance that two rows share a value.
    """
    fields = [line.rstrip("\n").split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    integers, categories = [], []
    for column in range(1, 14):
        values = np.array([int(row[column]) for row in fields if row[column]])
        points = np.unique(np.quantile(values, np.linspace(0, 1, 64), method="inverted_cdf"))
        below = [round(float((values <= point).mean()), 6) for point in points]
        integers.append({"present": len(values) / len(fields), "values": points.tolist(), "cumulative": below})
    for column in range(14, 40):
        present = [row[column] for row in fields if row[column]]
        counts = np.unique(present, return_counts=True)[1].astype(np.float64)
        shared = float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))
        categories.append({"present": len(values) / len(fields), "chance_to_share": shared})
    return {"rows": len(fields), "integers": integers, "categories": categories}


def main(kind: str, *arguments: str) -> None:
    """Write one file of this folder."""
    if kind == "rows":
        ROWS.write_bytes(make_rows())
    elif kind == "statistics":
        text = json.dumps(make_statistics(Path(arguments[0])), indent=1)
        (HERE / "criteo_statistics.json").write_text(text + "\n")
    else:
        checkouts = [Path(argument).resolve() for argument in arguments]
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)  # the references write beside what they read
            np.savez_compressed(HERE / "dlrm_kaggle.npz", **make_dlrm(Path(directory), *checkouts))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("rows", "dlrm", "statistics"):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
