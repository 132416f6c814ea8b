"""The commands of README.md and docs, run word for word, and the figures that the pages show of their output."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.blocks import NOT_YET, PAGES, REASONS, ROOT, Block, blocks_of, differences, not_run
from tests.data_prep.oracle import make_rows
from tests.once import made_once

# How many blocks are not run. A number may only fall.
MOST_NOT_RUN = {"GPU": 2, "Docker": 4, "network": 16, "over five minutes": 3}
MOST_SECONDS = 900  # of a block: five minutes, with other tests beside
PUBLISHED = "published"  # the repository that README clones
ABSENT_FROM_COPY = (".git", ".venv", ".venv-oldest", ".venv-newest", "data", "runs", "shared")


def pages_with_commands() -> list[Path]:
    """The pages of which at least one block is run."""
    return [
        page
        for page in PAGES
        if page.name not in NOT_YET
        and any(block.is_commands and not block.reason for block in blocks_of(page.read_text()))
    ]


def test_no_more_blocks_than_before_are_left_out() -> None:
    counts = not_run()
    assert set(counts) <= set(REASONS), f"a mark's reason is one of {', '.join(REASONS)}"
    for reason in REASONS:
        most = MOST_NOT_RUN[reason]
        assert counts[reason] <= most, f"{counts[reason]} blocks are not run for {reason}, recorded are {most}"
        assert counts[reason] == most, f"lower MOST_NOT_RUN of {reason} to {counts[reason]}"


def test_a_mark_is_the_line_above_a_block_of_commands() -> None:
    for page in PAGES:
        text = page.read_text()
        marked = [block for block in blocks_of(text) if block.reason]
        assert text.count("<!-- not run in tests:") == len(marked), page.name
        assert all(block.is_commands for block in marked), page.name


def test_blocks_are_recognised() -> None:
    page = "# A\n```\nmake train\n```\n\n```\nauc 0.75012\n```\n<!-- file: a.yaml -->\n```yaml\na: 1\n```\n## B\n"
    page += "<!-- not run in tests: GPU -->\n```bash\nNPROC=2 nvidia-smi\n```\n"
    commands, output, file, marked = blocks_of(page)
    assert [block.is_commands for block in (commands, output, file, marked)] == [True, False, False, True]
    assert [block.is_output for block in (commands, output, file, marked)] == [False, True, False, False]
    assert (file.file, file.text, marked.reason) == ("a.yaml", "a: 1", "GPU")
    assert [block.section for block in (commands, output, file, marked)] == [1, 1, 1, 13]
    with pytest.raises(ValueError, match="line 1: a block that does not end"):
        blocks_of("```\nmake")


def test_figures_are_compared() -> None:
    shown = "eval: val (14,286 samples) auc 0.75528 ne 0.85672\n2,488,529 parameters, 24,300 samples/s"
    assert differences(shown, shown) == []
    assert differences(shown, "auc 0.75600 ne 0.85500 2,488,529 parameters 1 samples/s") == []
    assert differences(shown, "auc 0.75128 ne 0.85672 2,488,530 parameters") == ["auc 0.75528", "2,488,529 parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with_commands(), ids=lambda page: page.stem)
def test_commands_of_a_page(page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = page.read_text()
    blocks = blocks_of(text)
    copy_checkout(tmp_path / "clickwork", blocks)
    if "git clone" in text:
        (tmp_path / "clickwork").rename(tmp_path / PUBLISHED)
        run_blocks(blocks, tmp_path, page.name)
        return
    printed = ""
    if "make train" in text or "quickstart" in text or "data/synthetic" in text:
        quickstart = made_once(tmp_path_factory, "quickstart", train_quickstart)
        printed = (quickstart / "printed").read_text()
        for name in ("data", "runs"):
            shutil.copytree(quickstart / name, tmp_path / "clickwork" / name)
    run_blocks(blocks, tmp_path / "clickwork", page.name, printed)


def run_blocks(blocks: list[Block], directory: Path, page: str, transcript: str = "") -> None:
    """Run a page's commands in order; compare what follows a block in its section with what was printed so far."""
    section = None
    for block in blocks:
        where = f"{page}:{block.line}"
        if block.is_commands and block.reason:
            section = None
        elif block.is_commands:
            printed, directory = run_block(block.text, directory, where)
            transcript, section = transcript + printed, block.section
        elif block.is_output and block.section == section:
            missing = differences(block.text, transcript)
            assert not missing, f"{where} shows {missing}; its commands print:\n{transcript}"


def run_block(commands: str, directory: Path, where: str) -> tuple[str, Path]:
    """What a block prints, and the directory that it ends in; each command must succeed."""
    commands = commands.replace("git clone REPOSITORY", f"cp -r {PUBLISHED}").replace("/logs/", f"{directory}/logs/")
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
    assert process.returncode == 0, f"{where} ends with {process.returncode}:\n{commands}\n{process.stdout}"
    return process.stdout, Path(last.read_text().strip())


def environment() -> dict[str, str]:
    """Variables for commands: `python` and `make` take the environment at hand, and install nothing."""
    inherited = ("PYTEST_", "MAKE", "MFLAGS", "ARGS")  # of the `make test-all` that runs this
    variables = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return variables | {"PATH": path, "VENV": sys.prefix, "PYTHON": "true"}


def copy_checkout(to: Path, blocks: list[Block]) -> None:
    """A copy of this checkout with its environment, the files that a page shows, and those that it supposes."""

    def absent(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(directory) == ROOT and name in ABSENT_FROM_COPY]

    shutil.copytree(ROOT, to, ignore=absent, symlinks=True)
    (to / ".venv").symlink_to(sys.prefix)
    write_files_of_the_reader(to)
    for block in blocks:
        if block.file:
            (to / block.file).parent.mkdir(exist_ok=True)
            (to / block.file).write_text(block.text + "\n")


def train_quickstart(directory: Path) -> None:
    """The run of README's first command, and what it prints."""
    checkout = directory / "clickwork"
    copy_checkout(checkout, [])
    (directory / "printed").write_text(run_block("make train", checkout, "README.md")[0])
    for name in ("data", "runs"):
        (checkout / name).rename(directory / name)
    shutil.rmtree(checkout)


def write_files_of_the_reader(directory: Path) -> None:
    """The files that pages suppose: Criteo's days, tables of ratings, a log of events with its items."""
    generator = np.random.default_rng(1)
    (directory / "days").mkdir()
    for day in range(2):
        rows = make_rows(3000, seed=day)
        for path in (directory / f"day_{day}.gz", directory / f"days/day_{day}.gz"):
            path.write_bytes(gzip.compress(rows))
    (directory / "logs").mkdir()
    (directory / "logs/train.txt").write_bytes(make_rows(6000, seed=2))
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
