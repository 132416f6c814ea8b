"""Rows per second of preprocessing, against TorchRec's three steps and inflating alone, or against another commit.

    python -m benchmarks.preprocess [--rows N] [--runs N] [--real FILE] [--raw-in DIR] [--out FILE.json]
    python -m benchmarks.preprocess --against COMMIT [--jobs NAME ...]

Everything runs on the same synthetic days, in the same session, in turn, `--runs` times after one round that does not
count (it compiles); but TorchRec, being slow, runs once, on the same days. The raw files lie in `--raw-in`, by
default in memory (/dev/shm): what is compared is the programs, not how fast this machine's disk is read. What is
written goes to the disk. "one file" is one day, which two workers read in chunks, and once more to sum it; else each
worker reads files of its own. A rate of `parse` is of that stage alone (for `hash` it is all the work on rows: parse,
encode, write, sum); `whole` is of the whole job in its process, start-up of Python and loading of kernels excluded.
One worker is pinned to one core, but for `.gz`, which is inflated beside it. With `--real` the `.gz` file is these rows
again and again, which compress as in the original, as gzip does not see that far back.

With `--against` each job runs once in a checkout of the commit and once here, which goes first changing from round to
round; a ratio is the median over rounds of this tree's rate to the commit's.
"""

import argparse
import contextlib
import functools
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from isal import igzip

from benchmarks.check import REPOSITORY, checkout, in_turn
from benchmarks.result_file import write_result

Rates = dict[str, float]

TORCHREC = "TorchRec's three steps, one process as made"
FROM_GZ = "hash from .gz, 1 worker and its threads"
INFLATE = "inflating that .gz alone"
ROW_BYTES_IN_MEMORY = 600  # a row's text, its shards until the text is there, and packed or as TorchRec's
ENCODINGS = {
    "hash": ["data.encoding=hash", "data.max_ind_range=1000000"],
    "vocabulary": ["data.encoding=vocabulary"],
    "torchrec_fixed": ["data.encoding=torchrec_fixed"],
}
DAYS, ONE_DAY, GZ = "days", "days/day_0.tsv", "day_0.gz"  # raw files


class Job(NamedTuple):
    """A job of preprocessing: its encoding, processes and raw files."""

    encoding: str
    workers: int
    raw: str = DAYS


JOBS = {
    "hash, 1 worker": Job("hash", 1),
    "vocabulary, 1 worker": Job("vocabulary", 1),
    "torchrec_fixed, 1 worker": Job("torchrec_fixed", 1),
    "hash, 2 workers": Job("hash", 2),
    "torchrec_fixed, 2 workers": Job("torchrec_fixed", 2),
    "hash, 2 workers, one file": Job("hash", 2, ONE_DAY),
    FROM_GZ: Job("hash", 1, GZ),
}
RATIOS = {
    "hash, 2 workers / 1": ("hash, 2 workers", "hash, 1 worker"),
    "torchrec_fixed / TorchRec": ("torchrec_fixed, 2 workers", TORCHREC),
    "inflating alone / hash from .gz": (INFLATE, FROM_GZ),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of both synthetic days")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--real", type=Path, help="real rows, of which the .gz day is to be made")
    parser.add_argument("--raw-in", type=Path, help="where raw files lie; by default /dev/shm, where it has room")
    parser.add_argument("--against", metavar="COMMIT", help="compare with this commit instead of other programs")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="NAME", help="with --against")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    if arguments.against is None and arguments.jobs != list(JOBS):
        parser.error("--jobs: has an effect with --against only")
    raw_in = arguments.raw_in or memory_with_room(ROW_BYTES_IN_MEMORY * arguments.rows)
    with tempfile.TemporaryDirectory(dir=raw_in) as raw, tempfile.TemporaryDirectory() as out:
        make_days(arguments.rows, Path(raw))
        packed_rows = pack(arguments, Path(raw)) if FROM_GZ in arguments.jobs else 0
        if arguments.against is None:
            results = measure(arguments, Path(raw), Path(out), packed_rows)
            print(markdown(results))
        else:
            with checkout(arguments.against) as baseline:
                results = compare(arguments, baseline, Path(raw), Path(out))
    write_result(arguments, results)


def memory_with_room(num_bytes: int) -> Path | None:
    """Where files lie in memory, if there is such a place and it has room."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > num_bytes else None


def measure(arguments: argparse.Namespace, raw: Path, out: Path, packed_rows: int) -> list[dict[str, Any]]:
    """All measurements in turn, several times over; `packed_rows` are those of the .gz file."""
    tasks: dict[str, Callable[[], Rates]] = {
        name: functools.partial(run_job, REPOSITORY, job, raw, out) for name, job in JOBS.items()
    }
    tasks[INFLATE] = lambda: {"whole": packed_rows / inflate(raw / GZ)}
    rates_by_task: dict[str, list[Rates]] = {name: [] for name in tasks}
    for round_number in range(arguments.runs + 1):
        for name, task in tasks.items():
            rates = task()
            if round_number:
                rates_by_task[name].append(rates)
    (raw / GZ).unlink()  # TorchRec wants the memory
    rates_by_task[TORCHREC] = [{"whole": arguments.rows / torchrec_steps(out, raw / DAYS)}]
    return [{"what": name, **medians(runs), "runs": runs} for name, runs in rates_by_task.items()]


def compare(arguments: argparse.Namespace, baseline: Path, raw: Path, out: Path) -> list[dict[str, Any]]:
    """Each job in both trees in turn, several times over; a line is printed for each job."""
    results = []
    for name in arguments.jobs:
        runs: dict[Path, list[Rates]] = {baseline: [], REPOSITORY: []}
        for round_number in range(arguments.runs + 1):
            for tree in in_turn(baseline, round_number):
                rates = run_job(tree, JOBS[name], raw, out)
                if round_number:
                    runs[tree].append(rates)
        pairs = list(zip(runs[baseline], runs[REPOSITORY], strict=True))
        ratios = {stage: [new[stage] / old[stage] for old, new in pairs] for stage in ("whole", "parse")}
        old, new = medians(runs[baseline]), medians(runs[REPOSITORY])
        print(
            f"{name}: {in_words(ratios['whole'])} times as fast, its parse stage {in_words(ratios['parse'])}; "
            f"{old['whole']:,.0f} rows/s and {old['peak_mib']:,.0f} MiB at {arguments.against}, "
            f"{new['whole']:,.0f} and {new['peak_mib']:,.0f} here",
            flush=True,
        )
        results.append({"what": name, "ratios": ratios, "there": runs[baseline], "here": runs[REPOSITORY]})
    return results


def in_words(ratios: list[float]) -> str:
    """Their median and range."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def medians(runs: list[Rates]) -> Rates:
    """The median of each figure."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def make_days(rows: int, raw: Path) -> None:
    """Two synthetic days."""
    overrides = [f"data.synthetic.rows={rows}", "data.synthetic.days=2"]
    overrides += ["data.synthetic.max_cardinality=1000000", "data.synthetic.drift=0"]
    run_data_prep(REPOSITORY, ["data.source=synthetic", *overrides, f"data.path={raw}/first", *ENCODINGS["hash"]])
    (raw / DAYS).mkdir()
    for day in ("day_0.tsv", "day_1.tsv"):
        shutil.move(raw / "first" / "raw" / day, raw / DAYS / day)
    shutil.rmtree(raw / "first")


def pack(arguments: argparse.Namespace, raw: Path) -> int:
    """A compressed file of the synthetic or the real rows; how many it has."""
    with gzip.open(raw / GZ, "wb", compresslevel=6) as target:
        if arguments.real is None:
            for day in sorted((raw / DAYS).iterdir()):
                with open(day, "rb") as file:
                    shutil.copyfileobj(file, target, 1 << 20)
            return arguments.rows
        content = arguments.real.read_bytes().rstrip(b"\n") + b"\n"
        times = max(1, arguments.rows // content.count(b"\n"))
        for _ in range(times):
            target.write(content)
        return times * content.count(b"\n")


def run_data_prep(tree: Path, overrides: list[str], pinned: bool = False) -> None:
    """Run a checkout's `python -m data_prep`, on one core only if wanted."""
    command = [sys.executable, "-m", "data_prep", *overrides]
    before = os.sched_getaffinity(0)
    try:
        if pinned:
            os.sched_setaffinity(0, {max(before)})
        process = subprocess.run(command, cwd=tree, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        os.sched_setaffinity(0, before)
    if process.returncode:
        raise SystemExit(process.stdout.decode())


def run_job(tree: Path, job: Job, raw: Path, out: Path) -> Rates:
    """Rates in rows per second, peak memory, and bytes on disk per row, of one job by a checkout's code."""
    path = out / "dataset"
    shutil.rmtree(path, ignore_errors=True)
    overrides = [f"data.raw={raw / job.raw}", f"data.path={path}", f"data.workers={job.workers}"]
    run_data_prep(tree, [*overrides, *ENCODINGS[job.encoding]], pinned=job.workers == 1 and job.raw != GZ)
    manifest = json.loads((path / "manifest.json").read_bytes())
    rows, extra = manifest["rows"], manifest["extra"]
    return {
        "whole": rows / extra["seconds"],
        "parse": rows / extra["stage_seconds"]["parse"],
        "peak_mib": extra["peak_memory_bytes"] / 2**20,
        "bytes_per_row": sum(file.stat().st_size for file in path.rglob("*.npy")) / rows,
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
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
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


def markdown(results: list[dict[str, Any]]) -> str:
    """The table for benchmarks/README.md."""
    lines = [
        "| | whole job, rows/s | parse stage, rows/s | peak memory, MiB | bytes on disk per row |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        cells = [result.get(key) for key in ("whole", "parse", "peak_mib", "bytes_per_row")]
        lines.append(f"| {result['what']} | " + " | ".join("" if c is None else f"{c:,.0f}" for c in cells) + " |")
    whole = {result["what"]: result["whole"] for result in results}
    lines += ["", *(f"{name}: {whole[one] / whole[other]:.2f}" for name, (one, other) in RATIOS.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
