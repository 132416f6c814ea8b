"""docs/index.md leads to every page, and README to it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def linked(path: Path) -> set[str]:
    """Targets of a page's links to Markdown files, as they are written."""
    return set(re.findall(r"\]\(([\w/.-]+\.md)", path.read_text(encoding="utf-8")))


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert linked(ROOT / "docs/index.md") == pages
    assert "docs/index.md" in linked(ROOT / "README.md")


def test_tests_that_hold_promises_are_there() -> None:
    text = (ROOT / "docs/reproducibility.md").read_text()
    names = re.findall(r"`([\w/]*\btest_\w+\.py)(?:::(\w+))?`", text)
    assert len(names) > 20
    for path, name in names:
        file = ROOT / ("" if path.startswith("tests/") else "tests/app") / path
        if path.startswith("tests/extensions/") and not (ROOT / "/".join(path.split("/")[1:3])).exists():
            continue  # the extension was deleted
        assert file.exists(), path
        assert not name or f"def {name}(" in file.read_text(), f"{path}::{name}"
