"""Rows per second of preprocessing, against TorchRec's three steps and against inflating alone.

    python benchmarks/preprocess.py [--rows N] [--runs N] [--real FILE] [--raw-in DIR] [--out FILE.json]

Everything runs on the same synthetic days, in the same session, in turn, `--runs` times after one round that does not
count (it compiles); but TorchRec, being slow, runs once, on the same days. The raw files lie in `--raw-in`, by
default in memory (/dev/shm): what is compared is the programs, not how fast this machine's disk is read. What is
written goes to the disk. "one file" is one day, which two workers read in chunks, and once more to sum it; else each
worker reads files of its own. Medians are printed as a Markdown table and as JSON with the command, the machine and
the commit. A rate of `parse` is of that stage alone (for `hash` it is all the work on rows: parse, encode, write,
sum); `whole` is of the whole job in its process, start-up of Python and loading of kernels excluded. One worker is
pinned to one core, but for `.gz`, which is inflated beside it. With `--real` the `.gz` file is these rows again and
again, which compress as in the original, as gzip does not see that far back.
"""

import argparse
import contextlib
import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import numpy as np  # noqa: E402
from isal import igzip  # noqa: E402

from data_prep.dataset.format import load_manifest  # noqa: E402

FIXED_2 = "torchrec_fixed, 2 workers"
TORCHREC = "TorchRec's three steps, one process as made"
HASH_2 = "hash, 2 workers"
FROM_GZ = "hash from .gz, 1 worker and its threads"
INFLATE = "inflating that .gz alone"
ROW_BYTES_IN_MEMORY = 600  # a row's text, its shards until the text is there, and packed or as TorchRec's
RATIOS = {
    "hash, 2 workers / 1": (HASH_2, "hash, 1 worker"),
    "torchrec_fixed / TorchRec": (FIXED_2, TORCHREC),
    "inflating alone / hash from .gz": (INFLATE, FROM_GZ),
}
OURS = {
    "hash": ["data.encoding=hash", "data.max_ind_range=1000000"],
    "vocabulary": ["data.encoding=vocabulary"],
    "torchrec_fixed": ["data.encoding=torchrec_fixed"],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of both synthetic days")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--real", type=Path, help="real rows, of which the .gz day is to be made")
    parser.add_argument("--raw-in", type=Path, help="where raw files lie; by default /dev/shm, where it has room")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    arguments = parser.parse_args()
    arguments.raw_in = arguments.raw_in or memory_with_room(ROW_BYTES_IN_MEMORY * arguments.rows)
    with tempfile.TemporaryDirectory(dir=arguments.raw_in) as raw, tempfile.TemporaryDirectory() as directory:
        results = measure(arguments, Path(raw), Path(directory))
    command = " ".join([Path(sys.executable).name, *sys.argv])
    raw_in = str(arguments.raw_in or tempfile.gettempdir())
    document = {"command": command, **machine(), "raw_files_in": raw_in, "results": results}
    print(markdown(document))
    print(json.dumps(document, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


def memory_with_room(num_bytes: int) -> Path | None:
    """Where files lie in memory, if there is such a place and it has room."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > num_bytes else None


def measure(arguments: argparse.Namespace, raw: Path, directory: Path) -> list[dict[str, Any]]:
    """All measurements in turn, several times over; raw files in the first directory, what is written in the other."""
    days = make_days(arguments, raw)
    packed, packed_rows = pack(arguments, days, raw)
    tasks: dict[str, Callable[[], dict[str, float]]] = {}
    for name, overrides in OURS.items():
        tasks[f"{name}, 1 worker"] = lambda o=overrides: ours(directory, days, 1, o)  # type: ignore[misc]
    for name in ("hash", "torchrec_fixed"):
        tasks[f"{name}, 2 workers"] = lambda o=OURS[name]: ours(directory, days, 2, o)  # type: ignore[misc]
    tasks[f"{HASH_2}, one file"] = lambda: ours(directory, days / "day_0.tsv", 2, OURS["hash"])
    tasks[FROM_GZ] = lambda: ours(directory, packed, 1, OURS["hash"], pinned=False)
    tasks[INFLATE] = lambda: {"whole": packed_rows / inflate(packed)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in tasks}
    for round_number in range(arguments.runs + 1):
        for name, task in tasks.items():
            rates = task()
            if round_number:
                found[name].append(rates)
    packed.unlink()  # TorchRec wants the memory
    found[TORCHREC] = [{"whole": arguments.rows / torchrec_steps(directory, days)}]
    return [
        {"what": name, **{key: statistics.median(run[key] for run in runs) for key in runs[0]}, "runs": runs}
        for name, runs in found.items()
    ]


def make_days(arguments: argparse.Namespace, raw: Path) -> Path:
    """A directory with two synthetic days."""
    overrides = [f"data.synthetic.rows={arguments.rows}", "data.synthetic.days=2"]
    overrides += ["data.synthetic.max_cardinality=1000000", "data.synthetic.drift=0"]
    run_ours(["data=synthetic", *overrides, f"data.path={raw}/first", *OURS["hash"]])
    days = raw / "days"
    days.mkdir()
    for day in ("day_0.tsv", "day_1.tsv"):
        shutil.move(raw / "first" / "raw" / day, days / day)
    shutil.rmtree(raw / "first")
    return days


def pack(arguments: argparse.Namespace, days: Path, raw: Path) -> tuple[Path, int]:
    """A compressed file of the synthetic or the real rows, and how many it has."""
    packed, rows = raw / "day_0.gz", arguments.rows
    with gzip.open(packed, "wb", compresslevel=6) as target:
        if arguments.real is None:
            for day in sorted(days.iterdir()):
                with open(day, "rb") as file:
                    shutil.copyfileobj(file, target, 1 << 20)
            return packed, rows
        content = arguments.real.read_bytes().rstrip(b"\n") + b"\n"
        times = max(1, rows // content.count(b"\n"))
        for _ in range(times):
            target.write(content)
        return packed, times * content.count(b"\n")


def run_ours(arguments: list[str], pinned: bool = False) -> None:
    """Run `python -m data_prep`, on one core only if wanted."""
    command = [sys.executable, "-m", "data_prep", *arguments]
    before = os.sched_getaffinity(0)
    try:
        if pinned:
            os.sched_setaffinity(0, {max(before)})
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    finally:
        os.sched_setaffinity(0, before)


def ours(
    directory: Path, raw: Path, workers: int, overrides: list[str], pinned: bool | None = None
) -> dict[str, float]:
    """Rates in rows per second, peak memory, and bytes on disk per row, of one job."""
    out = directory / "out"
    shutil.rmtree(out, ignore_errors=True)
    arguments = [f"data.raw={raw}", f"data.path={out}", f"data.workers={workers}", *overrides]
    run_ours(arguments, workers == 1 if pinned is None else pinned)
    manifest = load_manifest(out)
    size = sum(path.stat().st_size for path in out.rglob("*.npy"))
    return {
        "whole": manifest.rows / manifest.extra["seconds"],
        "parse": manifest.rows / manifest.extra["stage_seconds"]["parse"],
        "peak_mib": manifest.extra["peak_memory_bytes"] / 2**20,
        "bytes_per_row": size / manifest.rows,
    }


def inflate(packed: Path) -> float:
    """Seconds to inflate a file with the fastest library, which the pipeline uses, and do nothing else."""
    begin = time.perf_counter()
    buffer = memoryview(bytearray(1 << 20))
    with igzip.open(packed, "rb") as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def torchrec_steps(directory: Path, raw: Path) -> float:
    """Seconds of TorchRec's tsv_to_npys, sparse_to_contiguous and shuffle on two days, printing nothing."""
    provide_iopath()
    from torchrec.datasets import criteo

    out = directory / "torchrec"
    shutil.rmtree(out, ignore_errors=True)
    for name in ("npy", "contig", "shuffled"):
        (out / name).mkdir(parents=True)
    utils, days = criteo.BinaryCriteoUtils, range(2)
    files = [[str(out / "npy" / f"day_{day}_{kind}.npy") for kind in ("dense", "sparse", "labels")] for day in days]
    begin = time.perf_counter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        for day in days:
            utils.tsv_to_npys(str(raw / f"day_{day}.tsv"), *files[day])
        utils.sparse_to_contiguous(
            [sparse for _, sparse, _ in files], str(out / "contig"), 0, output_file_suffix=".npy"
        )
        rows = {0: len(np.load(files[0][2]))}  # of the days to shuffle: the last is only copied
        utils.shuffle(str(out / "npy"), str(out / "contig"), str(out / "shuffled"), rows, days=2)
    return time.perf_counter() - begin


def provide_iopath() -> None:
    """What TorchRec asks of iopath, which it does not install: a way to open local files."""
    manager = SimpleNamespace(open=open, set_strict_kwargs_checking=lambda strict: None)
    module = ModuleType("iopath.common.file_io")
    module.PathManagerFactory = lambda: SimpleNamespace(get=lambda key: manager)  # type: ignore[attr-defined]
    sys.modules.update({"iopath": ModuleType("iopath"), "iopath.common": ModuleType("iopath.common")})
    sys.modules["iopath.common.file_io"] = module


def machine() -> dict[str, Any]:
    """What this was measured on."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
    model = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    load = os.getloadavg()[0]
    return {
        "commit": commit,
        "cpu": model,
        "cpus": os.cpu_count(),
        "load_at_end": round(load, 2),
        "python": platform.python_version(),
    }


def markdown(document: dict[str, Any]) -> str:
    """The table for benchmarks/README.md."""
    lines = [
        f"`{document['command']}` on {document['cpus']} × {document['cpu']}, commit {document['commit']}, "
        f"load {document['load_at_end']}; medians.",
        "",
        "| | whole job, rows/s | parse stage, rows/s | peak memory, MiB | bytes on disk per row |",
        "|---|---|---|---|---|",
    ]
    for result in document["results"]:
        cells = [result.get(key) for key in ("whole", "parse", "peak_mib", "bytes_per_row")]
        lines.append(f"| {result['what']} | " + " | ".join("" if c is None else f"{c:,.0f}" for c in cells) + " |")
    whole = {result["what"]: result["whole"] for result in document["results"]}
    lines += ["", *(f"{name}: {whole[one] / whole[other]:.2f}" for name, (one, other) in RATIOS.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
