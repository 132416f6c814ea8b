"""Plant faults one at a time, and see whether the tests catch them: python -m tests.planted_faults OUT --again FILE ...

The faults of earlier results, each a change of one statement, are planted into today's code, wherever it is now.
`trace` runs tests once, with a probe at each of these statements, to learn which tests execute it, in any process.
`plant` runs those tests for each fault, nearest first, for LIMIT_SECONDS at most. Faults that were caught then and are
not caught now are printed at the end.
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
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from benchmarks.result_file import write_result

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "data_prep", "common", "extensions")
# Of a fault: a test failed; none did; no test executes the statement; today's code does not have the statement.
OUTCOMES = ("caught", "survived", "untested", "gone")
WORKERS = 2
LIMIT_SECONDS = 45
FAILED = (1, 2, 3)  # exit statuses of pytest: tests failed, or it could not load or run them
MAX_TESTS = 60  # of a fault: as many begin in that time
_times = count(1_000_000_000)  # of changed files: Python and Numba take a file of the same time for the same
PROBE = """
import hashlib, os
_seen = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        path = f"{os.environ['PLANTED_HITS']}/{number}-{hashlib.md5(test.encode()).hexdigest()}"
        with open(path, "w") as file:
            file.write(test)
"""


@dataclass
class Fault:
    """A change of one statement.

    Attributes:
        path: of the file; line: of the statement; before, after: its source; tests: that execute it, nearest first;
            a result has their number.
        outcome: one of OUTCOMES; caught_by: the test that failed; previous: the outcome in the earlier result, if any.
    """

    path: str
    line: int
    before: str
    after: str
    tests: list[str] = field(default_factory=list)
    outcome: str = ""
    caught_by: str = ""
    previous: str = ""


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
    if is_compiled(source) or name == "common/jit.py":
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
            fault.outcome = "gone"


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


def run_tests(root: Path, *arguments: str, seconds: float | None = None, **environment: str) -> tuple[int, str]:
    """Run pytest in a clone; its status, -1 after `seconds`, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=root,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return -1, process.communicate()[0]


def trace(faults: Sequence[Fault]) -> None:
    """Find the tests that execute each fault's statement."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as hits:
        root = clone(f"{directory}/clone")
        (root / "planted_probe.py").write_text(PROBE)
        by_path: dict[str, list[int]] = {}
        for number, fault in enumerate(faults):
            by_path.setdefault(fault.path, []).append(number)
        for path, numbers in by_path.items():
            source = (root / path).read_text()
            if is_compiled(source):
                continue
            lines = source.splitlines(keepends=True)
            nodes = {number: locate(source, faults[number])[0] for number in numbers}
            for number, node in sorted(nodes.items(), key=lambda pair: -pair[1].lineno):
                call, line = f'__import__("planted_probe").hit({number})', node.lineno - 1
                if isinstance(node, ast.If) and lines[line].lstrip().startswith("elif"):
                    lines[line] = lines[line].replace("elif ", f"elif {call} or ", 1)
                else:
                    lines.insert(line, f"{' ' * node.col_offset}{call}\n")
            write_module(root, path, "".join(lines))
        status, printed = run_tests(root, "-m", "not slow", "-n", "4", PLANTED_HITS=hits, PYTHONPATH=str(root))
        print(f"traced with status {status}: {printed.splitlines()[-1]}", file=sys.stderr)
        for path in map(str, sorted(Path(hits).iterdir())):
            fault = faults[int(Path(path).name.partition("-")[0])]
            # A case that is named by a path has another name in another clone.
            fault.tests.append(re.sub(r"\[[^]]*/.*\]$", "", Path(path).read_text(encoding="utf-8")))
    for fault in faults:
        folder = f"tests/{Path(fault.path).parent}"
        if is_compiled((REPOSITORY / fault.path).read_text()) and (REPOSITORY / folder).is_dir():
            fault.tests = [folder]
        fault.tests = sorted(set(fault.tests), key=lambda test: (-_nearness(fault.path, test), test))


def is_compiled(source: str) -> bool:
    """Whether a module has kernels, which cannot call the probe: the tests of its folder are taken for all of it."""
    return "from common.jit import" in source


def _nearness(path: str, test: str) -> int:
    """How many folders a module and the test's file have in common, and one more if their names are alike."""
    module, file = Path(path), Path(test.partition("::")[0])
    pairs = zip(module.parts[:-1], file.parts[1:-1], strict=False)
    common = next((number for number, (one, other) in enumerate(pairs) if one != other), len(module.parts) - 1)
    return 2 * common + (file.stem == f"test_{module.stem}")


def plant(fault: Fault, root: Path) -> bool:
    """Plant a fault in a clone and run its tests. Returns False where the module cannot be imported then."""
    source = (root / fault.path).read_text()
    write_module(root, fault.path, replace_part(source, locate(source, fault)[0], fault.after))
    try:
        module = fault.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        command = [sys.executable, "-c", f"import {module}"]
        if subprocess.run(command, cwd=root, capture_output=True, check=False).returncode:
            return False
        if not fault.tests:
            fault.outcome = "untested"
            return True
        options = ["-x", "-n", "0", "-rfE", "-m", "not slow"]
        status, printed = run_tests(root, *options, *fault.tests[:MAX_TESTS], seconds=LIMIT_SECONDS)
        failure = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", printed, re.MULTILINE)
        fault.outcome = "caught" if status in FAILED else "survived"
        fault.caught_by = failure[1] if failure else ""
        return True
    finally:
        write_module(root, fault.path, source)


def main() -> None:
    """Trace and plant; print each outcome, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--again", nargs="+", required=True, help="earlier results, whose faults are planted again")
    arguments = parser.parse_args()
    faults = [
        Fault(entry["path"], entry["line"], entry["before"], entry["after"], previous=entry["outcome"])
        for name in arguments.again
        for entry in json.loads(Path(name).read_text(encoding="utf-8"))["results"]["faults"]
    ]
    follow(faults)
    planted = [fault for fault in faults if fault.outcome == "gone"]
    faults = [fault for fault in faults if fault.outcome != "gone"]
    trace(faults)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(WORKERS) as pool:
        roots = [clone(f"{directory}/{number}") for number in range(WORKERS)]
        parts = [faults[number::WORKERS] for number in range(WORKERS)]
        planted += [fault for part in pool.map(_plant_all, parts, roots) for fault in part]
    counts = {name: sum(fault.outcome == name for fault in planted) for name in OUTCOMES}
    entries = [asdict(fault) | {"tests": len(fault.tests)} for fault in planted]
    write_result(arguments, {"counts": counts, "faults": entries})
    print(counts)
    for fault in planted:
        if fault.previous == "caught" and fault.outcome != "caught":
            print(f"caught before, {fault.outcome} now: {fault.path}:{fault.line}")


def _plant_all(faults: Sequence[Fault], root: Path) -> list[Fault]:
    planted = []
    for fault in faults:
        if plant(fault, root):
            planted.append(fault)
            change = f"{fault.before[:60]!r} -> {fault.after[:60]!r}"
            print(f"{fault.outcome}: {fault.path}:{fault.line}: {change}", flush=True)
    return planted


if __name__ == "__main__":
    main()
