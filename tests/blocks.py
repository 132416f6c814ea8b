"""The fenced blocks of README.md and docs: which are commands and are run, and what of their output is shown."""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_YET = ("recipes.md",)  # pages of which no block is run yet; the list may only become shorter
REASONS = ("GPU", "Docker", "network", "over five minutes")  # why a block is not run; network: other machines, too
PROGRAMS = "bash|cd|clickwork|dask|docker|eval|git|head|kubectl|make|pip|printf|python|sbatch|sed|taskset|tensorboard"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{PROGRAMS}) ")
MARK = re.compile(r"<!-- not run in tests: (.*) -->")
FILE = re.compile(r"<!-- file: (\S+) -->")
SCORE = re.compile(r"\b(auc|ne|logloss|rmse)\b\D{0,16}?(\d\.\d{3,})", re.IGNORECASE)
COUNT = re.compile(r"\b(\d[\d,.]*) (rows \(|embedding rows|parameters|steps of|GiB)")


class Block(NamedTuple):
    """A fenced block; `line` is that of its fence, from 1, and `section` that of the heading above it."""

    line: int
    section: int
    language: str
    before: str
    text: str

    @property
    def is_commands(self) -> bool:
        """Whether it is run: in `bash` or `sh`, or in no language with a first line that begins with a program."""
        return self.language in ("bash", "sh") or (not self.language and COMMAND.match(self.text) is not None)

    @property
    def is_output(self) -> bool:
        """Whether it may show what the commands above it print."""
        return not self.language and not self.is_commands

    @property
    def reason(self) -> str | None:
        """Why it is not run, by the mark on the line above its fence."""
        match = MARK.fullmatch(self.before)
        return match[1] if match else None

    @property
    def file(self) -> str | None:
        """The file that it shows, by the mark on the line above its fence."""
        match = FILE.fullmatch(self.before)
        return match[1] if match else None


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page, in order; a fence that is not closed is a ValueError."""
    blocks: list[Block] = []
    lines = text.splitlines()
    start, section = None, 0
    for number, line in enumerate(lines, 1):
        if start is None and line.startswith("```"):
            start = number
        elif start is not None and line.strip() == "```":
            before = lines[start - 2].strip() if start > 1 else ""
            body = "\n".join(lines[start : number - 1])
            blocks.append(Block(start, section, lines[start - 1].removeprefix("```").strip(), before, body))
            start = None
        elif start is None and line.startswith("#"):
            section = number
    if start is not None:
        raise ValueError(f"line {start}: a block that does not end")
    return blocks


def not_run() -> Counter[str]:
    """How many blocks of all pages are not run, by reason."""
    return Counter(block.reason for page in PAGES for block in blocks_of(page.read_text()) if block.reason)


def scores_and_counts(text: str) -> tuple[list[tuple[str, float]], set[tuple[str, str]]]:
    """The figures of an output that do not depend on the machine's speed: scores by metric, counts by unit."""
    scores = [(name.lower(), float(value)) for name, value in SCORE.findall(text)]
    return scores, {(unit, count) for count, unit in COUNT.findall(text)}


def differences(shown: str, printed: str) -> list[str]:
    """Figures that a page shows and its commands have not printed.

    Scores agree within 0.002, as processors round sums differently; counts are the same.
    """
    scores, counts = scores_and_counts(shown)
    printed_scores, printed_counts = scores_and_counts(printed)
    missing = [
        f"{name} {value}"
        for name, value in scores
        if not any(name == other and abs(value - measured) <= 0.002 for other, measured in printed_scores)
    ]
    return missing + [f"{count} {unit}" for unit, count in sorted(counts - printed_counts)]
