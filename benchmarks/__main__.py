"""All benchmarks: without arguments they are listed; `python -m MODULE --help` has each one's own arguments.

    python -m benchmarks --quick [NAME ...]

runs all of them, or those named, on so little that it shows only that they run: their figures mean nothing.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
OUT = "OUT"  # replaced by a file or directory that goes away
QUICK = {
    "check": ["--rounds=6", "--default-rounds=0", "--", "operators=[interaction]", "seconds=0.01"],
    "checkpoint_stall": ["--scale=0.0005", "--rounds=1"],
    "commands": ["--against=HEAD", "--rounds=1", "--cases=help"],
    "daily": ["--days=2", "--rows=20000"],
    "default_run": ["--cases=quickstart", "--threads=2", "--rounds=1", "--steps=40"],
    "events": ["--events=20000", "--rounds=1", "--workers=1"],
    "evaluation": ["--rows", "100000"],
    "first_gpu_run": ["--pretend", "--minutes=20", "--out", OUT],
    "fuxictr": ["speed", "--rounds=1", "--steps=15", "--shapes", "frappe_x1"],
    "generated_rows": ["--blocks=2", "--runs=1"],
    "ideas": ["--rounds=1", "--batch=128"],
    "input_path": ["--rows=100000", "--rounds=1", "--processes", "1", "2"],
    "invariance": ["--cases", "quickstart", "--micro-batches", "128", "--rounds=1", "--steps=40"],
    "own_table": ["--seeds", "1", "--", "train.max_steps=20"],
    "own_tables": ["--rows=20000", "--rounds=1"],
    "peers": ["--quick"],
    "planted_truth": ["--rows=20000", "--models=lr"],
    "precision": ["--seeds=1", "--rows=5000", "--steps=20", "--settings=fp32"],
    "preprocess": ["--rows=200000", "--runs=1"],
    "quality": ["--rows=3000", "--cases", "published", "--seeds", "1"],
    "row_codec": ["--rows=2000"],
    "serving": ["--rows=1000", "--seconds=0.2"],
    "spinning": ["--rounds=1", "--steps=20", "--counts=1000", "--situations=idle", "--processes=1"],
    "startup": ["--rounds=1"],
    "training_loop": ["--rounds=1", "--seconds=0.05", "--batch=128"],
}


def main() -> int:
    """List, or run quickly; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*", choices=[[], *QUICK], metavar="NAME")
    arguments = parser.parse_args()
    names = arguments.names or list(QUICK)
    failed = [name for name in names if not (run_quickly(name) if arguments.quick else describe(name))]
    return 1 if failed else 0


def describe(name: str) -> bool:
    """Print what a benchmark measures: the first paragraph of its module, which is not imported."""
    path = HERE / f"{name}.py"
    module = ast.parse((path if path.exists() else HERE / name / "__main__.py").read_text(encoding="utf-8"))
    print(f"benchmarks.{name:<20} {' '.join((ast.get_docstring(module) or '').partition(chr(10) * 2)[0].split())}")
    return True


def run_quickly(name: str) -> bool:
    """Run it with few rounds; print how long it took, and its output if it failed."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = [f"{directory}/out" if argument == OUT else argument for argument in QUICK[name]]
        began = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    outcome = f"failed with status {process.returncode}" if process.returncode else "ran"
    print(f"{name:<17} {outcome} in {time.monotonic() - began:.0f} s", flush=True)
    if process.returncode:
        print(process.stdout)
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
