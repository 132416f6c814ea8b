"""The registry of reproductions: docs/reproduce.md has its table, and what is wrong with a file is one line."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from app.record.documents import DONE
from common.documents import encode
from extensions.reproduce import registry
from extensions.reproduce.command import changed_keys, read_reproduction
from tests.extensions.reproduce.runs import write_seeds
from tests.extensions.reproduce.test_figures import document


def call(monkeypatch: pytest.MonkeyPatch, directory: Path, page: Path, *arguments: str) -> int:
    monkeypatch.setattr(registry, "REGISTRY", directory)
    monkeypatch.setattr(registry, "PAGE", page)
    monkeypatch.setattr(registry, "ROOT", page.parent)
    monkeypatch.setattr(sys, "argv", ["extensions.reproduce.registry", *arguments])
    return registry.main()


def test_the_table_of_the_docs_is_that_of_the_registry() -> None:
    text = registry.PAGE.read_text()
    lines = registry.table_lines(registry.read_registry(registry.REGISTRY))
    assert registry.replace_table(text, lines) == text, "run python -m extensions.reproduce.registry"


def test_each_file_has_what_it_takes_to_do_it_again() -> None:
    for path in registry.REGISTRY.glob("*.json"):
        reproduction = read_reproduction(path)
        assert reproduction.commit is not None
        assert not reproduction.dirty
        assert reproduction.dataset is not None
        assert reproduction.dataset.digest is not None
        assert all(run.manifest is not None and run.status in DONE for run in reproduction.runs)
        assert not changed_keys(reproduction.arguments)
        assert path.name.startswith(f"{reproduction.recipe}--")


def test_seeds_without_a_figure_are_not_counted(tmp_path: Path) -> None:
    reproduction = document(write_seeds(tmp_path / "x", 3), "published.test_auc=0.7")
    (figure,) = [each for each in reproduction.figures if each.published is not None]
    figure.values["3"] = None
    assert ", 2 seeds |" in registry.table_lines([reproduction])[-1]


def test_a_new_file_is_a_row_and_a_table_without_it_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, directory = tmp_path / "reproduce.md", tmp_path / "registry"
    shutil.copy(registry.PAGE, page)
    directory.mkdir()
    reproduction = document(write_seeds(tmp_path / "x", 5), "published.test_auc=0.7031", "published.tolerance=0.001")
    (directory / "x.json").write_text(encode(reproduction))
    assert call(monkeypatch, directory, page, "--check") == 1
    assert (
        "reproduce.md: its table is out of date; run python -m extensions.reproduce.registry" in capsys.readouterr().out
    )
    assert call(monkeypatch, directory, page) == 0
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| `x` |")]
    assert "| AUC of test 0.7031 | AUC of test 0.70300 ± 0.00196, 5 seeds | inside | dddddddddddd |" in row
    assert "`python -m app.reproduce seeds=5 out=" not in row
    assert call(monkeypatch, directory, page, "--check") == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"format": "clickwork-reproduction", "version": 2}, "of version 2 of its format, here 1 is read"),
        ({}, "is not of python -m app.reproduce"),
    ],
)
def test_a_file_of_another_version_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: dict[str, object],
    words: str,
) -> None:
    page = tmp_path / "reproduce.md"
    shutil.copy(registry.PAGE, page)
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert call(monkeypatch, tmp_path, page) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith(f"error: {tmp_path / 'old.json'}: ")
    assert error.count("\n") == 1
