"""The fenced blocks of README.md and docs: which are commands and are run, and what of their output is shown."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OF_EXTENSION = re.compile(r"^<!-- extension: (\w+) -->$", re.MULTILINE)  # a page that needs the folder of that name
PROGRAMS = "apptainer|bash|cd|clickwork|dask|docker|enroot|eval|git|head|kubectl|make|pip|printf|python|sbatch|sed"
PROGRAMS += "|srun|taskset|tensorboard"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{PROGRAMS}) ")
MARK = re.compile(r"<!-- not run in tests: (.*) -->")
FILE = re.compile(r"<!-- file: (\S+) -->")
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
# Of a machine and a moment: rates, seconds, shares of time, memory; calibration, too, which rounding moves most.
OF_A_MACHINE = re.compile(
    rf"(?:p50|p95|forward|backward|optimizer|input|input wait|memory|host|calibration) ({NUMBER})"
    rf"|({NUMBER})(?= (?:\w+/s|s|per device)\b)"
)
# A command, and lines that not every run prints: of an installation, of what is compiled once, of progress, and of
# baselines, which end after 30 s on any machine.
NOT_COMPARED = re.compile(r"\$ |\.venv/bin/|set-up: |compiling |baselines: |step \d+/|…?$")


def is_here(page: Path) -> bool:
    """Whether all extensions that the page names are here."""
    names = OF_EXTENSION.findall(page.read_text(encoding="utf-8"))
    return all((ROOT / "extensions" / name).is_dir() for name in names)


PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.exists() and is_here(page)
]


class Block(NamedTuple):
    """A fenced block; `line` is that of its fence, from 1, and `section` that of the heading above it."""

    line: int
    section: int
    language: str
    before: str
    text: str

    @property
    def is_commands(self) -> bool:
        """Whether it is run: Python, a shell's, or in no language with a first line that begins with a program."""
        return self.language in ("bash", "python") or (not self.language and COMMAND.match(self.text) is not None)

    @property
    def commands(self) -> str:
        """What a shell runs of it."""
        return f"python - <<'END'\n{self.text}\nEND" if self.language == "python" else self.text

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


def differences(page_text: str, printed: str) -> list[str]:
    """Lines of a page that its commands have not printed, however either is wrapped.

    Numbers of a machine may be any; decimal fractions agree within 0.005, as processors round sums differently; other
    numbers and all words are the same.
    """
    words = " ".join(printed.split())
    lines = [line.strip() for line in page_text.splitlines()]
    return [line for line in lines if not NOT_COMPARED.match(line) and not _is_printed(" ".join(line.split()), words)]


def _is_printed(line: str, printed: str) -> bool:
    """Whether a text has a line, with numbers that agree."""
    of_a_machine = {match.start(match.lastindex or 0) for match in OF_A_MACHINE.finditer(line)}
    numbers = [None if match.start() in of_a_machine else match[0] for match in re.finditer(NUMBER, line)]
    pattern = rf"(?<![\d.,])({NUMBER})".join(map(re.escape, re.split(NUMBER, line)))
    return any(
        all(number is None or _agree(number, other) for number, other in zip(numbers, match.groups(), strict=True))
        for match in re.finditer(pattern, printed)
    )


def _agree(number: str, other: str) -> bool:
    if "." not in number or "." not in other:
        return number == other
    return abs(float(number.replace(",", "")) - float(other.replace(",", ""))) <= 0.005
