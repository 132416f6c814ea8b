"""python -m app.reproduce recipe=NAME seeds=5 [key=value ...]: a recipe at several seeds beside its published figure.

Each seed is a run like any other, of app.train with the keys that are typed, in runs/NAME/seed_N; a run that is done is
not trained again, and one that was interrupted resumes, so that the same command can be repeated at any moment.
reproduce.json and reproduce.html have mean, standard deviation and 95% interval (Student's t) of the test split's and
the evaluated split's metrics of the models that are served, and whether the published figure lies inside.

Exit status: 0 all seeds done; 1 a seed failed, and the others are on the page; 2 bad input or configuration; 75
stopped: the same command continues from there.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from app.record.documents import DONE
from app.report.page import write_page
from app.report.read import refusing_other_versions
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED
from common.documents import encode
from common.errors import UserError
from common.files import write_atomically
from common.redact import redact_arguments
from extensions.reproduce.documents import DOCUMENT, PAGE, Reproduction, read_reproduction
from extensions.reproduce.figures import finished_runs, summarise
from extensions.reproduce.keys import ReproduceConfig
from extensions.reproduce.page import reproduction_page
from extensions.reproduce.seeds import Seed, have_begun, run_seeds, seeds_of, training_arguments

EXIT_FAILED = 1
LOCK = ".reproduce.lock"


def main(config: ReproduceConfig) -> int:
    """Train unfinished runs, write the page, and return the exit status."""
    logging.basicConfig(format="%(message)s")
    arguments, out = training_arguments(sys.argv[1:]), Path(config.out)
    _require_same(out, arguments)
    seeds = seeds_of(out, config.seeds)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / LOCK, blocking=False):
            return _reproduce(config, arguments, seeds, out)
    except Timeout as error:
        raise UserError(
            f"out={out}: another process makes runs there; wait for its end, or give another out"
        ) from error


def _require_same(out: Path, arguments: Sequence[str]) -> None:
    """Raise UserError if the directory has runs with other arguments."""
    try:
        former = read_reproduction(out / DOCUMENT).arguments
    except FileNotFoundError:
        return
    if sorted(former) != sorted(redact_arguments(arguments)):
        words = " ".join(former) or "no further keys"
        raise UserError(f"out={out}: its runs were made with {words}; type these, or give another out")


def _reproduce(config: ReproduceConfig, arguments: Sequence[str], seeds: Sequence[Seed], out: Path) -> int:
    # Written before the runs, so that a resuming command can compare its arguments.
    _write(config, arguments, seeds, {}, out)
    failed = run_seeds(seeds, arguments, config.processes)
    if EXIT_BAD_INPUT in failed.values() and not have_begun(seeds):
        for name in (DOCUMENT, PAGE):
            (out / name).unlink(missing_ok=True)
        return EXIT_BAD_INPUT
    is_stopped = EXIT_STOPPED in failed.values()
    failed = {seed: status for seed, status in failed.items() if status != EXIT_STOPPED}
    for _, sentence in _write(config, arguments, seeds, failed, out).verdict:
        print(sentence)
    print(out / PAGE)
    if is_stopped:
        return EXIT_STOPPED
    return EXIT_FAILED if failed else EXIT_DONE


def _write(
    config: ReproduceConfig, arguments: Sequence[str], seeds: Sequence[Seed], failed: dict[int, int], out: Path
) -> Reproduction:
    """Write document and page from the runs on disk, and return the document."""
    with refusing_other_versions(f"[{','.join(str(seed.directory) for seed in seeds if seed.status in DONE)}]"):
        runs = finished_runs(seeds)
        document = summarise(config, arguments, seeds, runs, failed)
        page = reproduction_page(config, document, runs, out)
    write_atomically(out / DOCUMENT, (encode(document, indent=1) + "\n").encode())
    write_page(out / PAGE, page)
    return document
