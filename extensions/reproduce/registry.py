"""The table of docs/reproduce.md of recipes reproduced here, made from benchmarks/reproduced/*.json.

    python -m app.reproduce recipe=NAME seeds=5
    cp runs/NAME/reproduce.json benchmarks/reproduced/NAME--MACHINE.json
    python -m extensions.reproduce.registry [--check]

Without --check it writes the table; with it, it says whether the table is that of the files, and ends with 1 if not.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from extensions.reproduce.command import DIGEST_LENGTH, VERDICTS, Reproduction, SeedFigure, read_reproduction

ROOT = Path(__file__).parents[2]
REGISTRY, PAGE = ROOT / "benchmarks/reproduced", ROOT / "docs/reproduce.md"
BEGIN, END = (
    "<!-- from benchmarks/reproduced, by python -m extensions.reproduce.registry -->\n",
    "<!-- end of the table -->\n",
)
COLUMNS = (
    "recipe",
    "published",
    "here: mean ± half the 95% interval",
    "verdict",
    "dataset",
    "machine, commit",
    "command",
)


def main() -> int:
    """Write or check the table; return an exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    try:
        text = PAGE.read_text(encoding="utf-8")
        new_text = replace_table(text, table_lines(read_registry(REGISTRY)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.check and new_text != text:
        print(f"{PAGE.relative_to(ROOT)}: its table is out of date; run python -m extensions.reproduce.registry")
        return 1
    if not arguments.check:
        PAGE.write_text(new_text, encoding="utf-8")
    return 0


def read_registry(directory: Path) -> list[Reproduction]:
    """Read a registry's documents in the order of file names. Raise UserError for the first unreadable one."""
    return [read_reproduction(path) for path in sorted(directory.glob("*.json"))]


def replace_table(text: str, lines: Sequence[str]) -> str:
    """Replace the table between the marks of a page.

    Raises:
        UserError: the page has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{PAGE.name}: lacks the lines {BEGIN.strip()} and {END.strip()}; add them")
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def table_lines(documents: Sequence[Reproduction]) -> list[str]:
    """Return the lines of a Markdown table with a row per document."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *sorted(map(_table_row, documents))]
    return [f"| {' | '.join(line)} |" for line in lines]


def _table_row(document: Reproduction) -> list[str]:
    """Return a document's cells of COLUMNS."""
    figures = [figure for figure in document.figures if figure.published is not None]
    main = document.figure_of(document.main)
    measured = figures or ([main] if main is not None else [])
    data = document.dataset
    code = (document.commit or "no commit")[:7] + (" with changes" if document.dirty else "")
    return [
        f"`{document.recipe}`",
        "; ".join(f"{figure.label} {figure.published}" for figure in figures) or "no figure",
        "; ".join(map(_mean_text, measured)) or "not measured",
        "; ".join(VERDICTS[figure.inside] for figure in figures) or "nothing published",
        f"{(data.digest or 'none')[:DIGEST_LENGTH]}" if data else "none",
        f"{document.machine or 'unknown'}, {code}",
        f"`{document.command}`",
    ]


def _mean_text(figure: SeedFigure) -> str:
    """Return a metric's mean over the seeds, with half its interval and their number."""
    if figure.mean is None:
        return f"{figure.label}: not measured"
    half = "" if figure.low is None else f" ± {figure.mean - figure.low:.5f}"
    seeds = sum(value is not None for value in figure.values.values())
    return f"{figure.label} {figure.mean:.5f}{half}, {seeds} seeds"


if __name__ == "__main__":
    sys.exit(main())
