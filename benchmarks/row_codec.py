"""The same rows by four ways: shards, encoding in memory, an export's score.py, and plain pandas and hashlib.

    python -m benchmarks.row_codec [--rows 120000] [--out FILE]

A table of numbers, texts, lists and times is drawn, prepared with data.encoding=hash, trained one step and exported.
Each value is an id or a dense feature of a row. Ids must be equal. Dense features must be equal bit for bit among the
first three ways; log1p of NumPy may differ from theirs in the last bit.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.result_file import write_result
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding import Encoder, read_new_rows

MODULUS = 100_000
SCHEMA = """\
label: label
dense: [price, count]
sparse: [user, item, {column: tags, separator: "|"}, {column: time, part: hour}, {column: time, part: weekday}]
"""
Values = dict[str, np.ndarray]  # by feature: dense [rows] float32, ids [all ids of its bags] int64


def main() -> int:
    """Compare; 1 if a value differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        table = draw(arguments.rows)
        table.to_csv(root / "rows.csv", index=False)
        (root / "rows.yaml").write_text(SCHEMA)
        keys = [f"data.raw={root}/rows.csv", f"data.schema={root}/rows.yaml", f"data.path={root}/data"]
        run("data_prep", *keys, "data.encoding=hash", f"data.max_ind_range={MODULUS}", "data.split.method=fraction")
        model = ["model=dlrm", "model.embedding_dim=8", "model.dense_arch=[8]", "model.over_arch=[8,1]"]
        quiet = ["train.max_steps=1", "baselines=false", "record.tensorboard=false"]
        run("app.train", f"data.path={root}/data", f"run.dir={root}/run", *model, *quiet)
        run("app.export", f"run={root}/run", f"out={root}/export")
        ways = {
            "shards": of_shards(root / "data"),
            "memory": of_memory(root / "data", root / "rows.csv"),
            "export": of_export(root / "export", root / "rows.csv"),
        }
    plain = of_pandas(table)
    num_values = sum(len(values) for values in plain.values())
    counts = {}
    for way, found in ways.items():
        counts[f"{way}, pandas"] = differences(found, plain, units=1)
        if way != "shards":
            counts[f"{way}, shards"] = differences(found, ways["shards"], units=0)
    print(f"{num_values:,} values; those that differ, by pair of ways: {counts}")
    write_result(arguments, {"values": num_values, "differing": counts})
    return int(any(counts.values()))


def draw(rows: int) -> pd.DataFrame:
    """Return rows of every kind of column; a tenth of the numbers is missing."""
    draw = np.random.default_rng(7)
    tags = [[f"t{tag}" for tag in draw.zipf(1.3, size) % 5_000] for size in draw.integers(0, 8, rows)]
    price = draw.lognormal(2, 1, rows).round(2)
    price[draw.random(rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "label": draw.integers(0, 2, rows),
            "price": price,
            "count": draw.integers(-5, 10**6, rows),
            "user": draw.integers(0, 10**9, rows),
            "item": [f"item é {number}" for number in draw.zipf(1.2, rows) % 10**6],
            "tags": ["|".join(each) for each in tags],
            "time": pd.Timestamp("2015-03-29") + pd.to_timedelta(draw.integers(0, 10**8, rows), unit="s"),
        }
    )


def run(module: str, *keys: str) -> None:
    """Run a command of this program, whose output is left out."""
    subprocess.run([sys.executable, "-m", module, *keys], check=True, stdout=subprocess.DEVNULL)


def of_shards(root: Path) -> Values:
    """Return what training reads, of all splits in the order of the file."""
    manifest = load_manifest(root)
    parts: dict[str, list[Any]] = {}
    for split in ("train", "val", "test"):
        for shard in manifest.splits[split].shards:
            arrays = open_shard(root, split, shard, manifest)
            single, bags = iter(arrays.sparse[:].T), iter(arrays.bags)
            for number, name in enumerate(manifest.schema["dense"]):
                parts.setdefault(name, []).append(arrays.dense[:, number])
            for name in manifest.schema["sparse"]:
                ids = next(bags).take(np.arange(shard.rows)).ids if name in manifest.ragged else next(single)
                parts.setdefault(name, []).append(ids)
    return {name: np.concatenate(part) for name, part in parts.items()}


def of_memory(root: Path, path: Path) -> Values:
    """Return what app.recommend and app.evaluate make of new rows."""
    encoder = Encoder.load(root)
    block = encoder.encode(encoder.parse_columns(read_new_rows(path, encoder.shape()).columns, "rows"))
    manifest, bags, single = load_manifest(root), iter(block.bags), iter(block.sparse.T)
    values = dict(zip(manifest.schema["dense"], block.dense.T, strict=True))
    return values | {name: next(bags).ids if name in manifest.ragged else next(single) for name in encoder.features}


def of_export(directory: Path, path: Path) -> Values:
    """Return what an exported model's own code makes of the file, as its users import it."""
    sys.path.insert(0, str(directory))
    from score import Scorer, read_rows

    scorer = Scorer(directory)
    rows = read_rows(path, scorer)
    inputs = scorer.encode(rows.columns, path.name, rows.numbers)
    values = {"price": inputs["dense_features"][:, 0], "count": inputs["dense_features"][:, 1]}
    values |= dict(zip(("user", "item", "time_hour", "time_weekday"), inputs["ids"].T, strict=True))
    return values | {"tags": inputs["ids_tags"][inputs["ids_tags"] >= 0]}


def of_pandas(table: pd.DataFrame) -> Values:
    """Return the values as docs/data.md and docs/inspect.md define them, in plain lines."""

    def ids(texts: pd.Series) -> Any:
        return texts.map(lambda text: value_of(text) % MODULUS).to_numpy(np.int64)

    numbers = {name: table[name].fillna(0).to_numpy(np.float64) for name in ("price", "count")}
    tags = table["tags"][table["tags"] != ""].str.split("|").explode()
    return {name: (np.sign(x) * np.log1p(np.abs(x))).astype(np.float32) for name, x in numbers.items()} | {
        "user": ids(table["user"].astype(str)),
        "item": ids(table["item"]),
        "tags": ids(tags),
        "time_hour": ids(table["time"].dt.hour.astype(str)),
        "time_weekday": ids(table["time"].dt.day_of_week.astype(str)),
    }


def value_of(text: str) -> int:
    """Return what a category is known by: a whole number by itself, any other text by its BLAKE2b."""
    if text.isdecimal() and str(int(text)) == text:
        return int(text)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 2**63


def differences(found: Values, expected: Values, units: int) -> dict[str, int]:
    """Return the number of values that differ by feature; floats may differ by `units` in the last place."""
    assert found.keys() == expected.keys(), (sorted(found), sorted(expected))
    counts = {}
    for name, values in found.items():
        other = expected[name]
        assert values.shape == other.shape, (name, values.shape, other.shape)
        if values.dtype == np.float32:
            beyond = np.abs(values.view(np.int32).astype(np.int64) - other.view(np.int32)) > units
        else:
            beyond = values.astype(np.int64) != other
        if beyond.any():
            counts[name] = int(beyond.sum())
    return counts


if __name__ == "__main__":
    sys.exit(main())
