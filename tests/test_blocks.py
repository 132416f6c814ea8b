"""The commands of README.md and docs, run word for word, and the figures that the pages show of their output."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.blocks import PAGES, ROOT, Block, blocks_of, differences
from tests.data_prep.oracle import make_rows
from tests.fast_python import fast_python
from tests.once import made_once

# How many blocks are not run. A number may only fall.
MOST_NOT_RUN = {"GPU": 2, "Docker": 5, "network": 12, "over five minutes": 1}
MOST_SECONDS = 900  # of a block: five minutes, with other tests beside
README = ROOT / "README.md"
PUBLISHED = "published"  # the repository that README clones
ABSENT_FROM_COPY = (".git", ".venv", ".venv-oldest", ".venv-newest", "data", "runs", "shared")


def test_no_more_blocks_than_before_are_left_out() -> None:
    marked = [block for page in PAGES for block in blocks_of(page.read_text()) if block.reason]
    counts = Counter(block.reason for block in marked)
    assert all(block.is_commands for block in marked)
    assert all(counts[reason] <= MOST_NOT_RUN[str(reason)] for reason in counts), counts


IN_CI = ("README", "data")  # the pages that a beginner opens first; the others run before a release
PAGE_CASES = [
    pytest.param(page, marks=pytest.mark.slow("processes" if page.stem in IN_CI else "examples"), id=page.stem)
    for page in PAGES
    if any(block.is_commands and not block.reason for block in blocks_of(page.read_text()))
]


@pytest.mark.parametrize("page", PAGE_CASES)
def test_commands_of_a_page(page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    copy_checkout(tmp_path / "clickwork", blocks)
    printed = ""
    if "quickstart" in text or "data/synthetic" in text:
        quickstart = made_once(tmp_path_factory, "quickstart", train_quickstart)
        printed = (quickstart / "printed").read_text()
        for name in ("data", "runs"):
            shutil.copytree(quickstart / name, tmp_path / "clickwork" / name)
    later = blocks[1:] if page == README else blocks  # the first is run by train_quickstart
    printed = run_blocks(later, tmp_path / "clickwork", page.name, printed)
    for name in re.findall(r"^Complete output: \[(.*)\]", text, re.MULTILINE):
        require_printed((page.parent / name).read_text(), printed, name)


def run_blocks(blocks: list[Block], directory: Path, page: str, transcript: str = "") -> str:
    """Run a page's blocks in order; compare what follows one in its section with what was printed so far, returned."""
    section = None
    for block in blocks:
        location = f"{page}:{block.line}"
        if block.is_commands and block.reason:
            section = None
        elif block.is_commands:
            begin = time.monotonic()
            printed, directory = run_block(block.commands, directory, location)
            print(f"{location}: {time.monotonic() - begin:.0f} s")  # shown by pytest -rP
            transcript, section = transcript + printed, block.section
        elif block.is_output and block.section == section:
            require_printed(block.text, transcript, location)
    return transcript


def require_printed(page_text: str, transcript: str, location: str) -> None:
    missing = "\n".join(differences(page_text, transcript))
    assert not missing, f"{location} shows\n{missing}\nIts commands print:\n{transcript}"


def run_block(commands: str, directory: Path, location: str) -> tuple[str, Path]:
    """What a block prints, and the directory that it ends in; each command must succeed."""
    # Times of files are kept: else Numba and Python compile all of the clone again.
    commands = commands.replace("git clone REPOSITORY", f"cp -a {PUBLISHED}")
    last = directory / ".directory"
    script = f"set -eo pipefail\ntrap 'pwd > {last}' EXIT\n{commands}\n"
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    assert process.returncode == 0, f"{location} ends with {process.returncode}:\n{commands}\n{process.stdout}"
    return process.stdout, Path(last.read_text().strip())


def environment() -> dict[str, str]:
    """Variables for commands: `python` and `make` take a fast one of the environment at hand, and install nothing."""
    inherited = ("PYTEST_", "MAKE", "MFLAGS", "ARGS")  # of the `make test-all` that runs this
    variables = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    programs = fast_python().parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return variables | {"PATH": path, "VENV": str(programs.parent), "PYTHON": "true"}


def copy_checkout(to: Path, blocks: list[Block]) -> None:
    """A copy of this checkout with its environment, the files that a page shows, and those that it supposes."""

    def absent(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(directory) == ROOT and name in ABSENT_FROM_COPY]

    shutil.copytree(ROOT, to, ignore=absent, symlinks=True)
    baselines = to / "extensions/baselines/command.py"
    if baselines.exists():  # the figures are not compared, but take half a minute of 200,000 rows
        text = baselines.read_text()
        assert "200_000" in text
        baselines.write_text(text.replace("200_000", "2_000"))
    (to / ".venv").symlink_to(sys.prefix)
    write_files_of_the_reader(to)
    for block in blocks:
        if block.file:
            (to / block.file).parent.mkdir(exist_ok=True)
            (to / block.file).write_text(block.text + "\n")


def train_quickstart(directory: Path) -> None:
    """README's first block, from the clone to the trained run, and what it prints."""
    copy_checkout(directory / PUBLISHED, [])
    printed, checkout = run_block(blocks_of(README.read_text())[0].text, directory, README.name)
    (directory / "printed").write_text(printed)
    for name in ("data", "runs"):
        (checkout / name).rename(directory / name)
    shutil.rmtree(checkout)


def write_files_of_the_reader(directory: Path) -> None:
    """The files that pages suppose: Criteo's days, rows without labels, ratings, a log of events with its items."""
    generator = np.random.default_rng(1)
    (directory / "days").mkdir()
    for day in range(2):
        rows = make_rows(3000, seed=day)
        for path in (directory / f"day_{day}.gz", directory / f"days/day_{day}.gz"):
            path.write_bytes(gzip.compress(rows))
    without_labels = [line.partition(b"\t")[2] for line in make_rows(10, seed=2).splitlines(keepends=True)]
    (directory / "new.tsv").write_bytes(b"".join(without_labels))
    for name, count in (("ratings", 4000), ("train", 3000), ("valid", 500), ("test", 500)):
        users, movies = generator.integers(100, size=count), generator.integers(50, size=count)
        stars = (users + movies + generator.integers(3, size=count)) % 5 + 1
        lines = [f"{user},{movie},{rating}" for user, movie, rating in zip(users, movies, stars, strict=True)]
        (directory / f"{name}.csv").write_text("\n".join(["userId,movieId,rating", *lines]) + "\n")
    write_log(directory, generator)


def write_log(directory: Path, generator: np.random.Generator) -> None:
    """A log of 40 users with 60 events each, and the brands of its 30 products."""
    lines = ["visitor,product,clicked_at,event,seconds,from_search"]
    for number in range(2400):
        product, seconds, search = generator.integers(30), generator.integers(60), generator.integers(2)
        event = ("view", "view", "view again", "scroll", "purchase")[generator.integers(5)]
        lines.append(f"{number % 40},{product},{1_600_000_000 + 300 * number},{event},{seconds},{search}")
    (directory / "log.csv").write_text("\n".join(lines) + "\n")
    brands = [f"{product},{product % 7}" for product in range(30)]
    (directory / "products.csv").write_text("\n".join(["product,brand", *brands]) + "\n")
    (directory / "items.csv").write_text("item\n1\n2\n3\n")
