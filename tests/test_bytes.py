"""No output byte changes: datasets and trained parameters against the digests in tests/bytes.json.

    python -m tests.test_bytes [NAME ...]    # from the top of the repository

records all cases again, or those named. Do so only where output is meant to change, and say why in the commit. A new
case is a row of commands there, without a digest.

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
import pytest

from tests.forks import preload_commands, start_module
from tests.once import made_once

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


def read_record() -> dict[str, Any]:
    """The contents of tests/bytes.json."""
    return json.loads(RECORD.read_bytes())


# The commands that make `out`; the overrides of `python -m app.train`, on one thread. Batches and rows are smaller than
# a recipe's tiny form has them where that form takes long.
DATASETS: dict[str, list[str]] = present({name: row["commands"] for name, row in read_record()["datasets"].items()})
RUNS: dict[str, str] = present({name: row["overrides"] for name, row in read_record()["runs"].items()})


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
    """Facts that decide the bits of training besides the code: the kind of CPU and the version of torch."""
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


# On another kind of CPU, or with another torch: of the first losses, relative. Rounding grows from step to step (of
# mlperf_v2 on an Intel CPU 2e-6 in the fourth and 9e-3 in the seventh), so later ones say nothing.
TOLERANCE, COMPARED_LOSSES = 1e-5, 4
# One of each kind of rows, encoding, split and command; the others vary them.
FAST = {"vocabulary", "vocabulary_gzip_days", "hash", "torchrec_capped", "torchrec_fixed", "dlrm_kaggle"}
FAST |= {"dense_minmax", "sampled", "given_parquet", "csv_shuffled", "parquet", "random_zipf", "trace"}
# These work in several units or tasks, so two processes share the work.
SHARED_BY_TWO = (
    "vocabulary_days",
    "torchrec_capped",
    "csv_shuffled",
    "parquet",
    "sampled_hash",
    "given_criteo_sampled",
)
RECORD_AGAIN = "if the change is meant, run `python -m tests.test_bytes {}` and say why in the commit"


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw rows of all cases."""
    return made_once(tmp_path_factory, "bytes_inputs", prepare_inputs)


def test_every_case_is_there() -> None:
    record = read_record()
    assert set(record["datasets"]) > FAST
    assert (len(record["datasets"]), len(record["runs"])) == (50, 11)


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else (pytest.mark.slow("bytes"),)) for name in DATASETS]
)
def test_a_dataset_keeps_its_bytes(name: str, inputs: Path, tmp_path: Path) -> None:
    row = dataset_row(name, inputs, tmp_path)
    assert row["digest"] == read_record()["datasets"][name]["digest"], RECORD_AGAIN.format(name)


@pytest.mark.slow("examples")
@pytest.mark.parametrize("name", SHARED_BY_TWO)
def test_two_workers_write_the_same_bytes(name: str, inputs: Path, tmp_path: Path) -> None:
    row = dataset_row(name, inputs, tmp_path, workers=2)
    assert row["digest"] == read_record()["datasets"][name]["digest"], RECORD_AGAIN.format(name)


@pytest.mark.slow("processes")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_keeps_its_losses_and_parameters(name: str, inputs: Path, tmp_path: Path) -> None:
    """To the bit where the digests were recorded on such a machine, else the first losses within a tolerance."""
    record = read_record()
    recorded_machine, current_machine = record["machine"], machine()
    few = [] if recorded_machine == current_machine else [f"train.max_steps={COMPARED_LOSSES}"]
    row, recorded = training_row(name, inputs, tmp_path, *few), record["runs"][name]
    first, expected = (entry["first_losses"][:COMPARED_LOSSES] for entry in (row, recorded))
    message = f"{name}: first losses compared within {TOLERANCE} relative; {RECORD_AGAIN.format(name)}"
    assert first == pytest.approx(expected, rel=TOLERANCE), message
    if recorded_machine == current_machine:
        message = f"{name}: compared bit by bit, since recorded on this kind of machine ({current_machine['cpu']}, "
        message += f"torch {current_machine['torch']}); {RECORD_AGAIN.format(name)}"
        assert row == recorded, message


if __name__ == "__main__":
    main(sys.argv[1:])
