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
from extensions.reproduce.command import SHORTEST, VERDICTS, Reproduction, SeedFigure, read_reproduction

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
        new_text = with_table(text, table(read_registry(REGISTRY)))
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


def with_table(text: str, lines: Sequence[str]) -> str:
    """Replace the table between the marks of a page.

    Raises:
        UserError: the page has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{PAGE.name}: lacks the lines {BEGIN.strip()} and {END.strip()}; add them")
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def table(documents: Sequence[Reproduction]) -> list[str]:
    """Return the lines of a Markdown table with a row per document."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *sorted(map(_row, documents))]
    return [f"| {' | '.join(line)} |" for line in lines]


def _row(document: Reproduction) -> list[str]:
    figures = [each for each in document.figures if each.published is not None]
    main = document.figure_of(document.main)
    measured = figures or ([main] if main is not None else [])
    data = document.dataset
    code = (document.commit or "no commit")[:7] + (" with changes" if document.dirty else "")
    return [
        f"`{document.recipe}`",
        "; ".join(f"{each.label} {each.published}" for each in figures) or "no figure",
        "; ".join(map(_measured, measured)) or "not measured",
        "; ".join(VERDICTS[each.inside] for each in figures) or "nothing published",
        f"{(data.digest or 'none')[:SHORTEST]}" if data else "none",
        f"{document.machine or 'unknown'}, {code}",
        f"`{document.command}`",
    ]


def _measured(each: SeedFigure) -> str:
    if each.mean is None:
        return f"{each.label}: not measured"
    half = "" if each.low is None else f" ± {each.mean - each.low:.5f}"
    return f"{each.label} {each.mean:.5f}{half}, {sum(value is not None for value in each.values.values())} seeds"


if __name__ == "__main__":
    sys.exit(main())
