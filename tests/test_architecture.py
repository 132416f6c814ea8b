"""The architecture, held by machine: who may import whom, how long things get, what must not leak.

`data_prep` is a world without torch; `app` knows of it only what lies on disk. In `app`, leaf modules know
the configuration and no other leaf: the entry points compose.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "common", "data_prep")
MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 60

TORCH = {"torch", "torchrec", "fbgemm_gpu", "tensordict", "torchmetrics"}
ENTRY_POINTS = {"train", "evaluate", "recommend", "export", "plan", "bench", "verify", "doctor", "report", "launch"}
# Modules that compose on behalf of several entry points; none imports an entry point.
COMPOSERS = {"benchmark", "serving", "utilisation", "processes", "session", "planning", "resume", "keeper", "witness",
             "feed", "run", "summary", "outline"}  # fmt: skip
# What any module of app may know of data_prep: what lies on disk, and the one definition of an id's bag, which is
# the same on disk and while reading.
CONTRACT = {"format", "ragged", "multi_hot"}
# What any leaf of app may import of app.
SHARED = {"config", "batch"}

# Written so that this file does not accuse itself.
LEAKS = {
    "path of one machine": re.compile(r"(?<![\w.~$}-])/(?:root|home|Users|work)/\w"),
    "package registry's host": re.compile(r"\b(?:pypi|pythonhosted|download\.pytorch|anaconda)\.(?:org|com)"),
}


def imported_modules(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each module that a file imports, wherever in the file it does so."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                # `from data_prep import format` imports a module, `from common.errors import x` a name.
                names = [*base, alias.name]
                module = root.joinpath(*names)
                is_module = module.with_suffix(".py").is_file() or module.is_dir()
                yield node.lineno, ".".join(names if is_module else base)


def why_forbidden(importer: tuple[str, ...], imported: str) -> str | None:
    """Why the module `importer` (its dotted name, in parts) must not import another; None if it may."""
    package, target = importer[0], imported.split(".")
    if package in ("common", "data_prep") and target[0] in TORCH:
        return f"{package} is a world without torch"
    if package == "common" and target[0] in ("app", "data_prep"):
        return "common is below app and data_prep"
    if package == "data_prep" and target[0] == "app":
        return "data_prep knows nothing of app"
    if package == "tests" and importer[1:] == ("reference",) and target[0] in PACKAGES:
        return "the oracle is independent of what it judges"
    if package != "app":
        return None
    if target[0] == "tests":
        return "app does not need its tests"
    part, target_part = importer[1], "".join(target[1:2])
    if target[0] == "data_prep":
        known = CONTRACT | {"encode"} if part in ENTRY_POINTS | COMPOSERS else CONTRACT
        if target_part not in known:
            return f"of data_prep, app.{part} may know {' and '.join(sorted(known))}"
    if target[0] == "app" and part in COMPOSERS and target_part in ENTRY_POINTS:
        return f"app.{part} serves entry points and imports none"
    if target[0] == "app" and part not in ENTRY_POINTS | COMPOSERS and target_part not in SHARED | {part}:
        return f"app.{part} is a leaf: of app it may know {' and '.join(sorted(SHARED))}; entry points compose"
    return None


def layering_problems(root: Path) -> list[str]:
    """Every import against the layering, as `file:line: reason`."""
    problems = []
    for path in python_files(root, (*PACKAGES, "tests")):
        relative = path.relative_to(root)
        parts = relative.with_suffix("").parts
        for line, imported in sorted(set(imported_modules(path, root))):
            reason = why_forbidden(parts, imported)
            if reason:
                problems.append(f"{relative}:{line}: imports {imported}: {reason}")
    return problems


def size_problems(root: Path) -> list[str]:
    """Every file and function that asks to be divided, as `file:line: reason`."""
    problems = []
    for path in python_files(root, (*PACKAGES, "requirements")):
        relative, text = path.relative_to(root), path.read_text()
        lines = len(text.splitlines())
        if lines > MAX_FILE_LINES:
            problems.append(f"{relative}:{lines}: {lines} lines, more than {MAX_FILE_LINES}: divide the file")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    reason = f"{node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}: divide the function"
                    problems.append(f"{relative}:{node.lineno}: {reason}")
    return problems


def leak_problems(root: Path, files: list[Path]) -> list[str]:
    """Every trace of one machine or registry in the files, as `file:line: reason`."""
    problems = []
    for path in files:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # binary
        for number, line in enumerate(lines, start=1):
            for what, pattern in LEAKS.items():
                if found := pattern.search(line):
                    problems.append(f"{path.relative_to(root)}:{number}: {what}: {found.group()!r}")
    return problems


def python_files(root: Path, directories: tuple[str, ...]) -> list[Path]:
    return sorted(path for directory in directories for path in (root / directory).rglob("*.py"))


def test_imports_follow_the_layering() -> None:
    assert not layering_problems(ROOT), "\n" + "\n".join(layering_problems(ROOT))


def test_files_and_functions_stay_small() -> None:
    assert not size_problems(ROOT), "\n" + "\n".join(size_problems(ROOT))


def test_no_machine_and_no_registry_in_tracked_files() -> None:
    # safe.directory: a container's root reads a checkout of somebody else's.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip(f"not a git checkout, so no list of tracked files: {listing.stderr.strip()}")
    files = [ROOT / name for name in listing.stdout.split("\0") if name]
    problems = leak_problems(ROOT, [path for path in files if path.is_file()])
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("file", "code", "problem"),
    [
        ("data_prep/parsing/criteo.py", "import torch", "data_prep/parsing/criteo.py:1: imports torch: "),
        (
            "data_prep/parsing/criteo.py",
            "def f():\n    from torchrec.sparse import x",
            "parse.py:2: imports torchrec.sparse: ",
        ),
        ("data_prep/parsing/criteo.py", "import fbgemm_gpu as f", "imports fbgemm_gpu: "),
        (
            "data_prep/parsing/criteo.py",
            "from app import config",
            "imports app.config: data_prep knows nothing of app",
        ),
        ("common/cli.py", "import torch.nn", "imports torch.nn: common is a world without torch"),
        (
            "common/cli.py",
            "from data_prep.dataset.format import x",
            "imports data_prep.dataset.format: common is below",
        ),
        ("common/cli.py", "import app", "imports app: common is below"),
        (
            "app/train.py",
            "from data_prep import parse",
            "imports data_prep.parsing.criteo: of data_prep, app.train may know",
        ),
        (
            "app/model.py",
            "from data_prep.encoding.encoder import x",
            "imports data_prep.encoding.encoder: of data_prep, app.model may know",
        ),
        ("app/model.py", "from app.data import Batch", "imports app.data: app.model is a leaf"),
        ("app/model.py", "from . import data", "imports app.data: app.model is a leaf"),
        ("app/model.py", "from .data import Batch", "imports app.data: app.model is a leaf"),
        ("app/model.py", "import app.train", "imports app.train: app.model is a leaf"),
        ("app/parts/dense.py", "from ..data import Batch", "imports app.data: app.parts is a leaf"),
        ("app/__init__.py", "import app.train", "imports app.train: "),
        ("app/model.py", "from tests.reference import x", "imports tests.reference: "),
        ("tests/reference.py", "from app.model import x", "imports app.model: the oracle is independent"),
    ],
)
def test_planted_import_is_caught(tmp_path: Path, file: str, code: str, problem: str) -> None:
    plant(tmp_path, file, code)
    problems = layering_problems(tmp_path)
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("app/train.py", "from app import data, model\nfrom data_prep.encoding.encoder import x\nimport torch"),
        (
            "app/model.py",
            "from app.config import Config\nfrom common.errors import UserError\nimport torchrec",
        ),
        ("app/data.py", "from data_prep.dataset.format import Manifest\nfrom data_prep import format"),
        (
            "app/parts/dense.py",
            "from app.parts import sparse\nfrom .sparse import x\nfrom ..config import Config",
        ),
        (
            "data_prep/parsing/criteo.py",
            "from data_prep.dataset.schema import Schema\nfrom . import format\nimport numba",
        ),
        ("tests/test_x.py", "from app.model import x\nfrom data_prep.parsing.criteo import y\nimport torch"),
    ],
)
def test_allowed_imports_pass(tmp_path: Path, file: str, code: str) -> None:
    plant(tmp_path, file, code)
    assert layering_problems(tmp_path) == []


def test_module_that_composes_imports_leaves_and_no_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "COMPOSERS", {"model"})
    plant(tmp_path, "app/model.py", "import app.data\nfrom data_prep.encoding.encoder import x\nimport app.train")
    problems = layering_problems(tmp_path)
    assert problems == ["app/model.py:3: imports app.train: app.model serves entry points and imports none"]


def test_planted_giants_are_caught(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "app/model.py",
        "x = 1\n" * MAX_FILE_LINES + "\ndef f():\n" + "    pass\n" * MAX_FUNCTION_LINES,
    )
    plant(
        tmp_path,
        "data_prep/parsing/criteo.py",
        "class A:\n    def f():\n" + "        pass\n" * (MAX_FUNCTION_LINES - 1),
    )
    assert [problem.split(", more")[0] for problem in size_problems(tmp_path)] == [
        "app/model.py:312: 312 lines",
        "app/model.py:252: f has 61 lines",
    ]


@pytest.mark.parametrize(
    "line",
    ["path = /{}/x".format("root"), "(/{}/me)".format("home"), "https://{}.org/simple".format("pypi")],
)
def test_planted_leak_is_caught(tmp_path: Path, line: str) -> None:
    plant(tmp_path, "docs/x.md", f"one\n{line}\n")
    assert leak_problems(tmp_path, [tmp_path / "docs/x.md"])[0].startswith("docs/x.md:2: ")


def plant(root: Path, file: str, code: str) -> None:
    """A tree with one file of ours in it, and those that it imports."""
    for name in (
        "app/config.py",
        "app/data.py",
        "app/parts/sparse.py",
        "data_prep/dataset/format.py",
        "data_prep/parsing/criteo.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(code)
