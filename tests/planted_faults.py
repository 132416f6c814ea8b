"""Plant faults one at a time, and see whether the tests still catch them: python -m tests.planted_faults FILE OUT

The faults that an earlier result caught, each a change of one statement, are planted into today's code, wherever the
statement is now. `plant` runs tests on each until one fails: the test that caught it then, those named after its
module, those of its folder. Faults that are not caught now are printed at the end, which is then of status 1.
"""

import argparse
import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from benchmarks.result_file import write_result

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "data_prep", "common", "extensions")
# Of a fault: a test failed; none did; today's code does not have the statement.
OUTCOMES = ("caught", "survived", "gone")
WORKERS = 2
LIMIT_SECONDS = 400  # of one run of tests
FAILED = (1, 2, 3)  # exit statuses of pytest: tests failed, or it could not load or run them
_times = count(1_000_000_000)  # of changed files: Python and Numba take a file of the same time for the same


@dataclass
class Fault:
    """A change of one statement.

    Attributes:
        path: of the file; line: of the statement; before, after: its source.
        outcome: one of OUTCOMES; caught_by: the test that failed, or before the fault is planted, that failed then.
    """

    path: str
    line: int
    before: str
    after: str
    caught_by: str
    outcome: str = ""


def statements(source: str) -> list[ast.stmt]:
    """The statements of functions that can be changed by themselves: simple ones, and the conditions of others."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    kinds = ast.Assign | ast.AugAssign | ast.Return | ast.Expr | ast.If | ast.While
    nodes = {
        (node.lineno, node.col_offset): node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, kinds) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }
    return list(nodes.values())


def changed_part(node: ast.stmt) -> ast.AST:
    """The part of a statement that is changed: all of it, or its condition."""
    return node.test if isinstance(node, ast.If | ast.While) else node


def sources() -> dict[str, str]:
    """The modules of the product but an extension's benchmarks, by their paths."""
    paths = [path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py"))]
    return {str(path.relative_to(REPOSITORY)): path.read_text() for path in paths if path.parent.name != "benchmarks"}


def clone(directory: str) -> Path:
    """A clone of the checkout's last commit."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(REPOSITORY), directory], check=True)
    return Path(directory)


def write_module(root: Path, name: str, source: str) -> None:
    """Write a module of a clone, with a time that no other version of it has.

    Kernels that contain one of its kernels are cached by their own files: these are removed.
    """
    (root / name).write_text(source, encoding="utf-8")
    moment = next(_times)
    os.utime(root / name, (moment, moment))
    if "from common.jit import" in source or name == "common/jit.py":
        for cached in root.rglob("*.nb[ci]"):
            cached.unlink()


def locate(source: str, fault: Fault) -> list[ast.stmt]:
    """The statements in today's source that have a fault's text, the nearest to its line first."""
    nodes = [node for node in statements(source) if ast.get_source_segment(source, changed_part(node)) == fault.before]
    return sorted(nodes, key=lambda node: abs(node.lineno - fault.line))


def follow(faults: Sequence[Fault]) -> None:
    """Give faults whose file has lost the statement the path of one that has it: of that name, or the only one.

    Where there is none, the fault's outcome is "gone".
    """
    modules = sources()
    for fault in faults:
        if fault.path in modules and locate(modules[fault.path], fault):
            continue
        paths = [path for path, source in modules.items() if fault.before in source and locate(source, fault)]
        namesakes = [path for path in paths if Path(path).name == Path(fault.path).name]
        if namesakes or len(paths) == 1:
            fault.path = (namesakes or paths)[0]
        else:
            fault.outcome, fault.caught_by = "gone", ""


def replace_part(source: str, node: ast.stmt, text: str) -> str:
    """The source with other text in place of the part of a statement that is changed."""
    part = changed_part(node)
    assert isinstance(part, ast.stmt | ast.expr)
    assert part.end_lineno is not None
    assert part.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    start = sum(map(len, lines[: part.lineno - 1])) + part.col_offset
    end = sum(map(len, lines[: part.end_lineno - 1])) + part.end_col_offset
    content = b"".join(lines)
    return (content[:start] + text.encode() + content[end:]).decode()


def run_tests(root: Path, tests: str) -> tuple[int, str]:
    """Run tests in a clone until one fails; pytest's status, -1 after LIMIT_SECONDS, and what it printed."""
    options = ["-q", "-x", "-n", "0", "-rfE", "-p", "no:cacheprovider", "-m", "not slow"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, tests],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return -1, process.communicate()[0]


def attempts(fault: Fault) -> list[str]:
    """The tests to run in turn: the one that caught the fault before, those named after its module, its folder's."""
    path, found = Path(fault.path), []
    file, _, name = fault.caught_by.partition("::")
    if name and (REPOSITORY / file).exists():
        # A case has another name in another clone if it is named by a path.
        test = name.partition("[")[0]
        found = [f"{file}::{test}"] if f"def {test}(" in (REPOSITORY / file).read_text(encoding="utf-8") else []
    found += [str(test.relative_to(REPOSITORY)) for test in (REPOSITORY / "tests").rglob(f"test_{path.stem}.py")]
    folders = (f"tests/{folder}" for folder in path.parents if folder.parts)
    return found + [folder for folder in folders if (REPOSITORY / folder).is_dir()][:1]


def plant(fault: Fault, root: Path) -> None:
    """Plant a fault in a clone and run its tests."""
    source = (root / fault.path).read_text()
    write_module(root, fault.path, replace_part(source, locate(source, fault)[0], fault.after))
    try:
        tests, fault.outcome, fault.caught_by = attempts(fault), "survived", ""
        for test in tests:
            status, printed = run_tests(root, test)
            if status in FAILED:
                failure = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", printed, re.MULTILINE)
                fault.outcome, fault.caught_by = "caught", failure[1] if failure else ""
                break
    finally:
        write_module(root, fault.path, source)


def main() -> int:
    """Plant; print each outcome, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the earlier result")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    entries = json.loads(arguments.file.read_text(encoding="utf-8"))["results"]["faults"]
    keys = "path", "line", "before", "after", "caught_by"
    faults = [Fault(*map(entry.get, keys)) for entry in entries if entry["outcome"] == "caught"]
    follow(faults)
    present = [fault for fault in faults if fault.outcome != "gone"]
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(WORKERS) as pool:
        roots = [clone(f"{directory}/{number}") for number in range(WORKERS)]
        list(pool.map(_plant_all, [present[number::WORKERS] for number in range(WORKERS)], roots))
    counts = {name: sum(fault.outcome == name for fault in faults) for name in OUTCOMES}
    write_result(arguments, {"counts": counts, "faults": [asdict(fault) for fault in faults]})
    print(counts)
    survivors = [fault for fault in faults if fault.outcome == "survived"]
    for fault in survivors:
        print(f"caught before, not now: {fault.path}:{fault.line}")
    return int(bool(survivors))


def _plant_all(faults: Sequence[Fault], root: Path) -> None:
    for fault in faults:
        plant(fault, root)
        change = f"{fault.before[:60]!r} -> {fault.after[:60]!r}"
        print(f"{fault.outcome}: {fault.path}:{fault.line}: {change}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
