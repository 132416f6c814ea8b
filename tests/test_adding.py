"""What takes one row or one file to add: the patches of tests/adding are applied to a copy, and their tests run there.

A patch has tests of its own. Beside them it may make one file, and add MAX_LINES_ELSEWHERE lines to others; it takes
none away. An extension is a folder, and changes no other file.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fast_python import fast_python

ROOT = Path(__file__).parents[1]
PATCHES = sorted((ROOT / "tests/adding").glob("*.patch"))
COPIED = ("app", "clickwork", "common", "data_prep", "extensions", "tests", "pyproject.toml")
MAX_LINES_ELSEWHERE = 3  # a row, and what it imports


class Change(NamedTuple):
    """What a patch does to a file."""

    path: str
    is_new: bool
    added_lines: list[str]
    removed_lines: list[str]

    @property
    def tests(self) -> list[str]:
        """What the patch adds, as pytest names it."""
        names = [re.match(r"def (test_\w+)\(", line) for line in self.added_lines if self.path.startswith("tests/")]
        return [f"{self.path}::{match[1]}" for match in names if match]


def changes_of(path: Path) -> list[Change]:
    """The files that a unified diff changes."""
    changes = []
    for part in re.split("^diff --git .*\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head, _, lines = part.partition("\n@@")
        added, removed = ([line[1:] for line in lines.splitlines() if line[:1] == sign] for sign in "+-")
        changes.append(Change(head.rpartition("+++ b/")[2], "--- /dev/null" in head, added, removed))
    return changes


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_a_patch_is_a_file_and_a_row(path: Path) -> None:
    changes = changes_of(path)
    of_code = [change for change in changes if not change.path.startswith("tests/")]
    new = [change.path for change in of_code if change.is_new]
    elsewhere = sum(len(change.added_lines) for change in of_code if not change.is_new)
    is_extension = not elsewhere and len({name.split("/")[1] for name in new if name.startswith("extensions/")}) == 1
    assert len(new) <= 1 or is_extension, new
    assert elsewhere <= MAX_LINES_ELSEWHERE
    assert not any(change.removed_lines for change in of_code)
    assert any(change.tests for change in changes)


@pytest.mark.slow("tool")
def test_their_tests_pass_in_a_copy_and_fail_without_their_code(tmp_path: Path) -> None:
    for name in COPIED:  # with what is compiled
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, tmp_path / name)
    changes = {path: changes_of(path) for path in PATCHES}
    tests = {path: [test for change in of_patch for test in change.tests] for path, of_patch in changes.items()}
    for path in PATCHES:
        apply(path, tmp_path)
    all_tests = [test for of_patch in tests.values() for test in of_patch]
    process = run_tests(tmp_path, all_tests)
    assert process.returncode == 0, process.stdout + process.stderr
    for path, of_patch in changes.items():
        apply(
            path,
            tmp_path,
            "--reverse",
            *(f"--include={each.path}" for each in of_patch if not each.path.startswith("tests/")),
        )
    process = run_tests(tmp_path, all_tests)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, process.stdout + process.stderr
    for path, names in tests.items():
        assert any(f"FAILED {test}" in process.stdout for test in names), (path.name, process.stdout)


def apply(path: Path, directory: Path, *options: str) -> None:
    """Apply a patch to a directory that is no checkout; lines may have moved, and all but one beside a change, too."""
    command = ["git", "apply", "-C1", *options, str(path)]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    process = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{path.name} fits no more: {process.stderr}"


def run_tests(directory: Path, tests: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run these tests of a copy by its own code."""
    command = [str(fast_python()), "-m", "pytest", "-n", "0", "-q", "-rf", "-p", "no:cacheprovider", *tests]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(directory)
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
