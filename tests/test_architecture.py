"""The architecture, held by machine: who may import whom, how long things get, what must not leak.

The contracts on imports are in pyproject.toml, [tool.importlinter].
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ("app", "common", "data_prep")
PACKAGES = (*CORE, "extensions", "clickwork")
FOLDERS = (*PACKAGES, "tests", "benchmarks", "requirements")  # of modules
# Why a test runs in the whole suite alone: it needs a tool (a browser, a compiler, a package index, another checkout)
# or several machines in namespaces, it starts several processes, or it has more cases, rows or steps than quick tests.
SLOW_REASONS = {"tool", "container", "processes", "examples"}
MAX_FILE_LINES = 1_200
MAX_FUNCTION_LINES = 100

# Written so that this file does not accuse itself.
LEAKS = {
    "path of one machine": re.compile(r"(?<![\w.~$}-])/(?:root|home|Users|work)/\w"),
    "package registry's host": re.compile(r"\b(?:pypi|pythonhosted|download\.pytorch|anaconda)\.(?:org|com)"),
}


def broken_contracts(root: Path) -> list[str]:
    """Return the findings of import-linter under `root`: the broken contracts and the imports that break them."""
    # In a process of its own: import-linter reads packages from the working directory and sys.path.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode == 0:
        return []
    return process.stdout.partition("Broken contracts")[2].splitlines() or [process.stdout + process.stderr]


def python_files(root: Path, directories: tuple[str, ...]) -> list[Path]:
    return sorted(path for directory in directories for path in (root / directory).rglob("*.py"))


def test_imports_keep_the_contracts() -> None:
    assert not broken_contracts(ROOT), "\n".join(broken_contracts(ROOT))


# A file, what is appended to it, what import-linter says of that.
PLANTED = [
    ("app/model/dlrm.py", "import app.training.loop", "app.model.dlrm -> app.training.loop"),
    ("app/checkpoint/saver.py", "from app.record import documents", "app.checkpoint.saver -> app.record.documents"),
    ("app/runtime/platform.py", "def f():\n    from app import train", "app.runtime.platform -> app.train"),
    ("app/data/split.py", "from data_prep.stages import write as gather", "app.data.split -> data_prep.stages"),
    ("data_prep/parsing/criteo.py", "import torch", "data_prep.parsing.criteo -> torch"),
    ("data_prep/dataset/format.py", "from torchrec.sparse import x", "data_prep.dataset.format -> torchrec"),
    ("data_prep/parsing/criteo.py", "from app import config", "data_prep.parsing.criteo -> app.config"),
    ("common/cli.py", "from data_prep.dataset.format import x", "common.cli -> data_prep.dataset.format"),
    ("common/cli.py", "import torch.nn", "common.cli -> torch"),
]


@pytest.mark.slow("tool")
def test_planted_imports_are_caught(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for file, code, _ in PLANTED:
        with open(tmp_path / file, "a", encoding="utf-8") as planted:
            planted.write(f"\n{code}\n")
    result = "\n".join(broken_contracts(tmp_path))
    assert [problem for *_, problem in PLANTED if problem not in result] == []


def test_tests_are_imported_by_nobody_and_the_oracle_imports_nothing_of_ours() -> None:
    package_import = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(PACKAGES)})\b", re.MULTILINE)
    assert not package_import.search((ROOT / "tests/reference.py").read_text())
    tests_import = re.compile(r"^\s*(?:from|import) tests\b", re.MULTILINE)
    assert [path for path in python_files(ROOT, PACKAGES) if tests_import.search(path.read_text())] == []


def imports_by_module() -> dict[str, set[str]]:
    """The modules of ours that each module imports, inside functions too, but not for types alone."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in python_files(ROOT, PACKAGES)}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    imported: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        tree.body = [node for node in tree.body if not ast.unparse(node).startswith("if TYPE_CHECKING:")]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported[name] |= {each.name for each in node.names} & modules.keys()
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    whole = f"{node.module}.{each.name}"
                    imported[name] |= {whole if whole in modules else str(node.module)} & modules.keys()
    return {name: targets - {name} for name, targets in imported.items()}


@pytest.mark.medium
def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(imports_by_module()).prepare()  # raises CycleError, which names the modules


@pytest.mark.medium
def test_an_extension_is_imported_by_nothing_but_itself() -> None:
    for name, targets in imports_by_module().items():
        extension = ".".join(name.split(".")[:2])
        others = {target for target in targets if target.startswith("extensions.")}
        assert not {target for target in others if ".".join(target.split(".")[:2]) != extension}, name


def command_modules(package: str) -> set[str]:
    """The modules at the top of a package that are commands, those of extensions too, which may have been deleted."""
    runs_a_row = re.compile(r'^ +run(?:_of_extension\(|\(COMMANDS\[)"', re.MULTILINE)
    commands = {path.stem for path in (ROOT / package).glob("*.py") if runs_a_row.search(path.read_text())}
    return commands | {"__init__", "__main__"}


@pytest.mark.parametrize("package", ["app", "data_prep"])
def test_the_layers_name_all_of_a_package_but_its_commands(package: str) -> None:
    contract = (ROOT / "pyproject.toml").read_text().partition(f'containers = ["{package}"]')[2].partition("]")[0]
    top = {path.stem for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(re.findall(r"\w+", contract.partition("layers")[2])) == top - command_modules(package)


@pytest.mark.medium
@pytest.mark.parametrize("package", ["app", "data_prep"])
def test_commands_are_imported_by_nothing(package: str) -> None:
    """They are the uppermost layer; the registry names them as text."""
    commands = {f"{package}.{name}" for name in command_modules(package) - {"__init__"}}
    for path in python_files(ROOT, PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {str(node.module), *(f"{node.module}.{each.name}" for each in node.names)}
            else:
                names = {each.name for each in node.names} if isinstance(node, ast.Import) else set()
            assert not names & commands, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


@pytest.mark.medium
def test_files_and_functions_stay_small() -> None:
    problems = []
    for path in python_files(ROOT, (*PACKAGES, "requirements")):
        lines = len(path.read_text().splitlines())
        if lines > MAX_FILE_LINES:
            problems.append(f"{path}:{lines}: more lines than {MAX_FILE_LINES}: divide the file")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.body[0].lineno + 1  # its body's: parameters take one each
                if lines > MAX_FUNCTION_LINES:
                    problems.append(f"{path}:{node.lineno}: {node.name} has {lines} lines: divide the function")
    assert not problems, "\n".join(problems)


@pytest.mark.medium
def test_no_machine_and_no_registry_in_tracked_files() -> None:
    # safe.directory: a container's root reads a checkout of somebody else's.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip(f"not a git checkout, so no list of tracked files: {listing.stderr.strip()}")
    problems = []
    for path in [ROOT / name for name in listing.stdout.split("\0") if (ROOT / name).is_file()]:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # binary
        for number, line in enumerate(lines, start=1):
            leaks = {leak: match[0] for leak, pattern in LEAKS.items() if (match := pattern.search(line))}
            problems += [f"{path.relative_to(ROOT)}:{number}: {leak}: {text!r}" for leak, text in leaks.items()]
    assert not problems, "\n" + "\n".join(problems)


PAGES = [
    path.relative_to(ROOT) for pattern in ("*.md", "docs/*.md", "benchmarks/**/*.md") for path in ROOT.glob(pattern)
]


def is_of_missing_extension(path: str) -> bool:
    """Return True if a path leads into the folder of an extension, or of its tests, that is not here."""
    folder = re.match(r"(?:tests/)?extensions/\w+", path)
    return folder is not None and not (ROOT / folder[0]).exists()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_names_what_is_there(page: Path) -> None:
    """Links lead to files, a code span after a link names something defined there, and paths in code spans exist."""
    text = (ROOT / page).read_text()
    for target, name in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)(?:\s+`(\w+)`)?", text):
        linked = ROOT / page.parent / target
        if linked.is_relative_to(ROOT) and is_of_missing_extension(os.path.relpath(linked.resolve(), ROOT)):
            continue
        assert linked.exists(), f"{page}: {target}"
        if name and linked.suffix == ".py":
            assert re.search(rf"^(?:def|class) {name}\b", linked.read_text(), re.MULTILINE), (page, target, name)
    for path in re.findall(r"`((?:app|common|data_prep|extensions|tests|docs|benchmarks)/[\w/.]+)`", text):
        file = ROOT / path
        is_here = file.exists() or ("NAME" in file.name and file.parent.is_dir())
        assert is_here or is_of_missing_extension(path), f"{page}: {path}"


def test_the_index_names_every_page_and_readme_the_index() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\(([\w/.-]+\.md)", (ROOT / "docs/index.md").read_text())) == pages
    assert "](docs/index.md" in (ROOT / "README.md").read_text()


def test_tests_that_hold_promises_are_there() -> None:
    text = (ROOT / "docs/reproducibility.md").read_text()
    names = re.findall(r"`([\w/]*\btest_\w+\.py)(?:::(\w+))?`", text)
    assert len(names) > 20
    for path, name in names:
        file = ROOT / ("" if path.startswith("tests/") else "tests/app") / path
        if not is_of_missing_extension(path):
            assert file.exists(), path
            assert not name or f"def {name}(" in file.read_text(), f"{path}::{name}"


def test_only_tables_of_constants_keep_a_form_of_their_own() -> None:
    marks = re.compile(r"# fmt: (?:skip|off)")
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    assert sum(len(marks.findall(path.read_text())) for path in files) <= 15


@pytest.mark.medium
def test_a_slow_test_has_a_reason() -> None:
    """One of the listed ones, unless it has quick cases, too: then the marks are among its parameters."""
    known = {f"pytest.mark.slow({reason!r})" for reason in SLOW_REASONS}
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            marks: list[ast.expr] = [*getattr(node, "decorator_list", ())]
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            reasons = {text for mark in marks if (text := ast.unparse(mark)).startswith("pytest.mark.slow")}
            assert reasons <= known, f"{path}:{node.lineno}"
