"""docs/index.md leads to every page, and README to it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def linked(path: Path) -> set[str]:
    """Targets of a page's links to Markdown files, as they are written."""
    return set(re.findall(r"\]\(([\w/.-]+\.md)", path.read_text()))


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert linked(ROOT / "docs/index.md") == pages
    assert "docs/index.md" in linked(ROOT / "README.md")
