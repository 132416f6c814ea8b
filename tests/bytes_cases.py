"""Commands whose output must keep its bytes, and the record of them: tests/bytes.json, checked by tests/test_bytes.py.

    python -m tests.bytes_cases [NAME ...]    # from the top of the repository

records all cases again, or those named. Do so only where output is meant to change, and say why in the commit.

A case is known by its command lines and by what they leave on disk, so that it outlives any change to the code behind
them. Commands run in an empty directory with a link `inputs` to the raw rows and a link
`golden` to tests/golden/data. A dataset case writes to `out`, a training case to `run`.
"""

import csv
import gzip
import hashlib
import json
import os
import platform
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow
import pyarrow.parquet

from tests.forks import preload_commands, start_module

REPOSITORY = Path(__file__).resolve().parents[1]
RECORD = REPOSITORY / "tests/bytes.json"
FIRST_LOSSES = 8
INTEGERS, CATEGORIES = 13, 26
DISTINCT_ROWS = 170_000  # lookup tables of 26 columns of so many values take two passes at 512 MiB
GENRES = ("Action", "Comedy", "Drama", "Film-Noir", "Sci-Fi", "Été")

SCHEMAS = {
    "csv": """\
label: rating >= 4
dense: [price, age]
sparse: [user, {column: genres, separator: "|"}, item, {column: tags, separator: ", "}]
""",
    "bare": """\
delimiter: "\\t"
header: false
label: {column: 2, rule: "> 3"}
dense: [3]
sparse: [0, {column: 5, separator: "|"}, 1]
""",
    "parquet": """\
label: rating >= 4
dense: [price, age]
sparse: [user, genres, item, {column: tags, separator: ", "}]
""",
    "numbers": """\
label: {column: rating, kind: number}
dense: [price]
sparse: [user, {column: genres, separator: "|"}, item]
""",
}

_ROWS = "data.raw=inputs/rows.tsv data.chunk_bytes=60000"
_DAYS = "data.raw=inputs/days data.chunk_bytes=40000"
_GZIP = "data.raw=inputs/gz data.chunk_bytes=40000"
_CSV = "data.raw=inputs/table.csv data.schema=inputs/csv.yaml data.chunk_bytes=30000"
_BARE = "data.raw=inputs/table.tsv data.schema=inputs/bare.yaml data.chunk_bytes=30000"
_PARQUET = "data.raw=inputs/table.parquet data.schema=inputs/parquet.yaml data.chunk_bytes=30000"
_GIVEN_DAYS = "data.train=[inputs/days/day_0,inputs/days/day_1] data.val=inputs/crlf.tsv data.test=inputs/gz/day_2.gz"
_GIVEN = "data.train=inputs/table.parquet data.val=inputs/more.parquet data.schema=inputs/parquet.yaml"
_RANDOM = "data.source=random data.random.rows=900 data.random.eval_rows=150 data.random.max_rows_per_table=300"
_MADE = f"data_prep {_DAYS} data.path=made"


OF_EXTENSIONS = {
    "trace": "locality",
    **dict.fromkeys(("export_npy", "export_bin", "import_npy"), "exchange"),
    **dict.fromkeys(("events", "mlperf_v4"), "sequences"),
}
Case = TypeVar("Case")


def present(cases: dict[str, Case]) -> dict[str, Case]:
    """The cases of the core, and of extensions that are here."""
    folders = {name: REPOSITORY / "extensions" / OF_EXTENSIONS.get(name, "") for name in cases}
    return {name: case for name, case in cases.items() if name not in OF_EXTENSIONS or folders[name].is_dir()}


def _dataset(overrides: str) -> list[str]:
    return [f"data_prep {overrides} data.path=out"]


# The commands that make `out`.
DATASETS: dict[str, list[str]] = {
    "vocabulary": _dataset(_ROWS),
    "vocabulary_frequency_threshold": _dataset(f"{_ROWS} data.frequency_threshold=4"),
    "vocabulary_max_ind_range": _dataset(f"{_ROWS} data.max_ind_range=50"),
    "vocabulary_first_appearance": _dataset(f"{_ROWS} data.vocabulary_order=first_appearance"),
    "vocabulary_value_order": _dataset(f"{_ROWS} data.vocabulary_order=value"),
    "vocabulary_several_passes": _dataset(
        "data.raw=inputs/distinct.tsv data.memory_budget=512MiB data.chunk_bytes=32MiB data.split.method=random"
    ),
    "vocabulary_days": _dataset(_DAYS),
    "vocabulary_gzip_days": _dataset(_GZIP),
    "hash": _dataset(f"{_ROWS} data.encoding=hash data.max_ind_range=1000"),
    "hash_days": _dataset(f"{_DAYS} data.encoding=hash data.max_ind_range=1000"),
    "hash_crlf": _dataset("data.raw=inputs/crlf.tsv data.encoding=hash data.max_ind_range=1000"),
    "torchrec": _dataset(f"{_DAYS} data.encoding=torchrec"),
    "torchrec_capped": _dataset(f"{_DAYS} data.encoding=torchrec data.frequency_threshold=3 data.max_ind_range=60"),
    "torchrec_gzip_days": _dataset(f"{_GZIP} data.encoding=torchrec"),
    "torchrec_fixed": _dataset(f"{_DAYS} data.encoding=torchrec_fixed"),
    "dlrm_kaggle": _dataset(f"{_ROWS} data.encoding=dlrm_kaggle"),
    "amd_blog": _dataset(f"{_ROWS} data.encoding=amd_blog data.max_categories=200"),
    "dense_raw": _dataset(f"{_ROWS} data.dense_transform=raw"),
    "dense_integers": _dataset(f"{_ROWS} data.dense_transform=integers"),
    "dense_minmax": _dataset(f"{_ROWS} data.dense_transform=minmax"),
    "dense_log_float32": _dataset(f"{_ROWS} data.dense_transform=log_float32"),
    "dense_torchrec": _dataset(f"{_ROWS} data.dense_transform=torchrec"),
    "split_random": _dataset(f"{_ROWS} data.split.method=random data.split.seed=3 data.split.held_out=0.3"),
    "split_scikit_learn": _dataset(f"{_DAYS} data.split.method=scikit_learn data.split.seed=3"),
    "split_fraction": _dataset(f"{_DAYS} data.split.method=fraction data.split.held_out=0.25"),
    "sampled": _dataset(f"{_DAYS} data.sampling.negative_drop_rate=0.6 data.sampling.seed=2"),
    "sampled_hash": _dataset(
        f"{_GZIP} data.encoding=hash data.max_ind_range=1000 data.sampling.negative_drop_rate=0.6"
    ),
    "csv": _dataset(_CSV),
    "csv_hash": _dataset(f"{_CSV} data.encoding=hash data.max_ind_range=100"),
    "csv_shuffled": _dataset(f"{_CSV} data.split.method=random data.frequency_threshold=3 data.dense_transform=raw"),
    "csv_sampled": _dataset(f"{_CSV} data.sampling.negative_drop_rate=0.5 data.dense_transform=minmax"),
    "csv_numbers": _dataset(
        "data.raw=inputs/table.csv data.schema=inputs/numbers.yaml data.chunk_bytes=30000 data.split.method=random"
    ),
    "tsv_without_header": _dataset(_BARE),
    "parquet": _dataset(_PARQUET),
    "parquet_hash": _dataset(f"{_PARQUET} data.encoding=hash data.max_ind_range=100"),
    "parquet_shuffled": _dataset(f"{_PARQUET} data.split.method=random data.vocabulary_order=first_appearance"),
    "given_criteo": _dataset(f"{_GIVEN_DAYS} data.chunk_bytes=40000"),
    "given_criteo_sampled": _dataset(
        f"{_GIVEN_DAYS} data.chunk_bytes=40000 data.dense_transform=minmax data.sampling.negative_drop_rate=0.6"
    ),
    "given_dlrm_kaggle": _dataset(f"{_GIVEN_DAYS} data.chunk_bytes=40000 data.encoding=dlrm_kaggle"),
    "given_parquet": _dataset(f"{_GIVEN} data.chunk_bytes=30000 data.frequency_threshold=3"),
    "synthetic": _dataset("data.source=synthetic data.synthetic.rows=1500 data.synthetic.max_cardinality=2000"),
    "synthetic_days": _dataset(
        "data.source=synthetic data.synthetic.rows=1500 data.synthetic.days=3 data.synthetic.seed=4"
    ),
    "random": _dataset(_RANDOM),
    "random_zipf": _dataset(f"{_RANDOM} data.random.distribution=zipf data.random.bag_sizes=5 data.random.seed=8"),
    "random_pareto": _dataset(
        f"{_RANDOM} data.random.distribution=pareto data.random.bag_sizes=mlperf_v2 data.random.bags_vary=true"
    ),
    "trace": _dataset(
        "data.source=trace data.trace.directory=inputs/trace data.trace.rows=900 data.trace.eval_rows=100"
    ),
    "events": _dataset(
        "data.source=synthetic_events data.synthetic_events.users=40 data.synthetic_events.seed=3 "
        "data.chunk_bytes=20000"
    ),
    "export_npy": [
        f"{_MADE} data.encoding=torchrec",
        "extensions.exchange data.path=made exchange.to=out exchange.format=npy",
    ],
    "export_bin": [
        f"{_MADE} data.dense_transform=integers",
        "extensions.exchange data.path=made exchange.to=out exchange.format=bin",
    ],
    "import_npy": [
        f"{_MADE} data.encoding=torchrec_fixed",
        "extensions.exchange data.path=made exchange.to=days exchange.format=npy",
        "extensions.exchange data.path=out exchange.source=days exchange.format=npy",
    ],
}
DATASETS = present(DATASETS)

_TINY = (
    "data.scale=tiny train.max_steps=20 train.log_every_steps=1 train.target_auc=null train.eval_every_fraction=null "
    "train.eval_every_steps=null eval.global_batch_size=512 checkpoint.every_steps=null record.tensorboard=false "
    "runtime.platform=cpu runtime.num_threads=1 run.dir=run"
)
# The overrides of `python -m app.train`, on one thread. Batches and rows are smaller than a recipe's tiny form has
# them where that form takes long.
RUNS: dict[str, str] = {
    "golden": (
        "data.path=golden run.name=golden model.dense_arch=[32,16] model.over_arch=[32,1] train.global_batch_size=64 "
        "train.max_steps=24 train.eval_every_steps=10 train.log_every_steps=1 record.tensorboard=false "
        "runtime.platform=cpu runtime.num_threads=1 run.dir=run"
    ),
    "amd_2026": f"recipe=amd_2026 {_TINY} train.global_batch_size=32",
    "amd_blog_2024": f"recipe=amd_blog_2024 {_TINY} train.global_batch_size=64",
    "amd_blog_2024_fixed": f"recipe=amd_blog_2024_fixed {_TINY} train.global_batch_size=64",
    "deepspark_3day": f"recipe=deepspark_3day {_TINY}",
    "meta_kaggle_2019": f"recipe=meta_kaggle_2019 {_TINY} data.synthetic.rows=10000",
    "mlperf_v1": f"recipe=mlperf_v1 {_TINY} train.global_batch_size=64 data.synthetic.rows=9000",
    "mlperf_v2": f"recipe=mlperf_v2 {_TINY} train.global_batch_size=32 data.synthetic.rows=3000",
    "mlperf_v4": (
        f"recipe=mlperf_v4 {_TINY} data.synthetic_events.users=50 data.synthetic_events.stay=0.7 "
        "sequences.hstu.position_bound=null train.max_steps=6"
    ),
    "ncf_movielens_1m": f"recipe=ncf_movielens_1m {_TINY} train.global_batch_size=256",
    "quickstart": f"recipe=quickstart {_TINY}",
}
RUNS = present(RUNS)


def prepare_inputs(directory: Path) -> None:
    """Write every raw file and schema that the cases read: the same bytes on every machine."""
    write_distinct_rows(directory / "distinct.tsv")
    (directory / "days").mkdir()
    (directory / "trace").mkdir()
    (directory / "trace/far.log").write_text("7, 3, 20, 4, 9\n0, 1, 2, 5\n0.2, 0.5, 0.75, 1.0\n")
    (directory / "trace/near.log").write_text(f"{', '.join(map(str, range(400)))}\n0, 1, 3, 90\n0.1, 0.6, 0.9, 1.0\n")
    (directory / "gz").mkdir()
    rows = criteo_rows(1500, seed=0)
    (directory / "rows.tsv").write_bytes(rows)
    (directory / "crlf.tsv").write_bytes(rows.replace(b"\n", b"\r\n"))
    for day, count in enumerate((700, 450, 331)):
        lines = criteo_rows(count, seed=10 + day)
        (directory / f"days/day_{day}").write_bytes(lines)
        (directory / f"gz/day_{day}.gz").write_bytes(gzip.compress(lines, mtime=0))
    table = table_columns(1500)
    # As CSV with quoted fields, and without a header, separated by tabs.
    texts = {**table, "genres": ["|".join(genres) for genres in table["genres"]]}
    rows_of_texts = [
        ["" if value is None else str(value) for value in row] for row in zip(*texts.values(), strict=True)
    ]
    with open(directory / "table.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([texts, *rows_of_texts])
    (directory / "table.tsv").write_text("".join("\t".join(row[:6]) + "\n" for row in rows_of_texts), encoding="utf-8")
    for name, columns in (("table", table), ("more", table_columns(400, seed=4))):
        pyarrow.parquet.write_table(pyarrow.table(columns), directory / f"{name}.parquet", row_group_size=400)
    for name, schema in SCHEMAS.items():
        (directory / f"{name}.yaml").write_text(schema)


def criteo_rows(rows: int, seed: int) -> bytes:
    """Lines in Criteo's format: skewed values, empty fields, negative and large integers, hexadecimal extremes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=rows) == 0
    integers = rng.integers(-3, 60, size=(rows, INTEGERS)) ** rng.integers(1, 4, size=(rows, INTEGERS))
    integers[::97, 4] = 2**31 - 1
    no_integer = rng.integers(6, size=(rows, INTEGERS)) == 0
    ceilings = 2 + np.arange(CATEGORIES) ** 2
    draws = rng.integers(0, 2**31, size=(2, rows, CATEGORIES)) % ceilings
    values = draws.min(axis=0) * 2_654_435_761 % 2**32
    values[::53, 7], values[::59, 8], values[::61, 9] = 0, 2**31, 2**32 - 1
    no_category = rng.integers(9, size=(rows, CATEGORIES)) == 0
    lines = []
    for row in range(rows):
        fields = [str(int(labels[row]))]
        fields += ["" if no_integer[row, i] else str(integers[row, i]) for i in range(INTEGERS)]
        fields += ["" if no_category[row, i] else f"{values[row, i]:08x}" for i in range(CATEGORIES)]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode()


def write_distinct_rows(path: Path) -> None:
    """Criteo rows of which nearly every category is a new value: a vocabulary too large for one pass."""
    rng = np.random.default_rng(7)
    with open(path, "wb") as file:
        for row in range(DISTINCT_ROWS):
            values = rng.bytes(4 * CATEGORIES).hex(" ", 4).replace(" ", "\t")
            file.write(f"{row % 3 % 2}\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t13\t{values}\n".encode())


def table_columns(rows: int, seed: int = 3) -> dict[str, list[Any]]:
    """Columns of a table as Python values; `genres` and `tags` hold any number of values a row."""
    rng = np.random.default_rng(seed)

    def several(names: tuple[str, ...], most: int) -> list[list[str]]:
        return [[names[i] for i in rng.integers(len(names), size=rng.integers(most + 1))] for _ in range(rows)]

    return {
        "user": [f"u{value}" for value in rng.integers(90, size=rows)],
        "item": rng.integers(10**9, 10**9 + 200, size=rows).tolist(),
        "rating": (rng.integers(2, 11, size=rows) / 2).tolist(),
        "price": [None if value == 0 else value / 8 for value in rng.integers(-40, 4000, size=rows).tolist()],
        "age": rng.integers(99, size=rows).tolist(),
        "genres": several(GENRES, 4),
        "tags": [", ".join(tags) for tags in several(tuple(f'tag "{i}"' for i in range(40)), 3)],
    }


def dataset_row(name: str, inputs: Path, directory: Path, workers: int = 1) -> dict[str, Any]:
    """Make a dataset case in the empty `directory` by `workers` processes; return its entry of tests/bytes.json."""
    for command in DATASETS[name]:
        module, *overrides = command.split()
        if module == "data_prep":
            overrides.append(f"data.workers={workers}")
        _run(module, overrides, inputs, directory)
    return {"commands": DATASETS[name], "digest": directory_digest(directory / "out")}


def training_row(name: str, inputs: Path, directory: Path, *overrides: str) -> dict[str, Any]:
    """Run a training case in the empty `directory`, with further overrides; return its entry of tests/bytes.json."""
    _run("app.train", [*RUNS[name].split(), "baselines=false", *overrides], inputs, directory)
    run = directory / "run"
    summary = json.loads((run / "summary.json").read_bytes())
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = summary["last"]
    losses = [_short(event["loss"]) for event in events if event["event"] == "train"]
    return {
        "overrides": RUNS[name],
        "steps": summary["steps"],
        "parameters": summary["digest"]["parameters"],
        "losses": summary["digest"]["losses"],
        "first_losses": losses[:FIRST_LOSSES],
        "last_loss": losses[-1],
        "logloss": _short(last["logloss"]),
        "auc": _short(last["auc"]),
    }


def directory_digest(root: Path) -> str:
    """SHA-256 of every file's path and bytes, in order of the paths, and of what a manifest says of the data.

    Archives count by their members' names and contents, since compressed bytes depend on the version of zlib.
    """
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                for member in sorted(archive.namelist()):
                    _add(total, f"{name}/{member}", archive.read(member))
        elif name == "manifest.json":
            _add(total, name, json.dumps(_stable(json.loads(path.read_bytes())), sort_keys=True).encode())
        else:
            _add(total, name, path.read_bytes())
    return total.hexdigest()


def machine() -> dict[str, str]:
    """What decides the bits of training besides the code: the kind of CPU and the version of torch."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        lines = [
            line.partition(":")
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if ":" in line
        ]
        facts = {key.strip(): value.strip() for key, _, value in reversed(lines)}
        widest = next((flag for flag in ("avx512f", "avx2") if flag in facts.get("flags", "").split()), "")
        cpu = f"{facts.get('model name', cpu)} {facts.get('cpu family')}/{facts.get('model')} {widest}".strip()
    return {"cpu": cpu, "torch": version("torch")}


def read_record() -> dict[str, Any]:
    """The contents of tests/bytes.json."""
    return json.loads(RECORD.read_bytes())


def write_record(record: dict[str, Any]) -> None:
    """Write tests/bytes.json, one case a line."""
    parts = [f'"machine": {json.dumps(record["machine"], ensure_ascii=False)}']
    for part in ("datasets", "runs"):
        rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(record[part].items())]
        parts.append(f'"{part}": {{\n' + ",\n".join(rows) + "\n}")
    RECORD.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main(names: list[str]) -> None:
    """Record the named cases again; without names all of them."""
    if unknown := set(names) - set(DATASETS) - set(RUNS):
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    record = read_record() if names else {"machine": machine(), "datasets": {}, "runs": {}}
    if set(names) & set(RUNS) and record["machine"] != machine():
        raise SystemExit(f"recorded on {record['machine']}, this is {machine()}: record all cases")
    preload_commands(with_training=True)
    with tempfile.TemporaryDirectory() as scratch:
        inputs = Path(scratch) / "inputs"
        inputs.mkdir()
        prepare_inputs(inputs)
        for part, cases, make in (("datasets", DATASETS, dataset_row), ("runs", RUNS, training_row)):
            for name in names or cases:
                if name in cases:
                    print(name, flush=True)
                    directory = Path(scratch) / name
                    directory.mkdir()
                    rows: dict[str, Any] = record[part]
                    rows[name] = make(name, inputs, directory)
    write_record(record)


def _run(module: str, overrides: list[str], inputs: Path, directory: Path) -> None:
    """Do what `python -m module overrides` does in `directory`; AssertionError if it fails."""
    for link, target in (("inputs", inputs), ("golden", REPOSITORY / "tests/golden/data")):
        if not (directory / link).exists():
            (directory / link).symlink_to(target)
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    environment = {key: value for key, value in os.environ.items() if key not in launcher}
    environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as streams:
        process = start_module(module, *overrides, cwd=directory, out=Path(streams), environment=environment)
        process.join()
        errors = (Path(streams) / "stderr").read_text()
    assert process.exitcode == 0, f"python -m {module} {' '.join(overrides)}: status {process.exitcode}\n{errors}"


def _stable(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without times, memory, and the bytes of compressed sources, which depend on the compressor."""
    stable = {key: value for key, value in manifest.items() if key not in ("extra", "tool_version", "sources")}
    sources = []
    for source in manifest["sources"]:
        compressed = Path(source["name"]).suffix in (".gz", ".parquet")
        keys = ("name", "rows") if compressed else ("name", "rows", "bytes", "sha256")
        sources.append({key: source[key] for key in (*keys, "split") if key in source})
    return {**stable, "sources": sources}


def _add(total: Any, name: str, content: bytes) -> None:
    total.update(f"{name}\0{len(content)}\0".encode())
    total.update(content)


def _short(number: float) -> float:
    """To nine digits, which tell any two float32 apart."""
    return float(f"{number:.9g}")


if __name__ == "__main__":
    main(sys.argv[1:])
