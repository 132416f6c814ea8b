"""python -m app.reproduce recipe=NAME seeds=5 [key=value ...]: a recipe at several seeds beside its published figure.

Each seed is a run like any other, of app.train with the keys that are typed, in runs/NAME/seed_N; a run that is done is
not trained again, and one that was interrupted resumes, so that the same command can be repeated at any moment. One
after the other, or with sbatch="OPTIONS" as jobs of Slurm: then the same command again, once they have ended, writes
the page. reproduce.json and reproduce.html have mean, standard deviation and 95% interval (Student's t) of the test
split's and the evaluated split's metrics of the models that are served, and whether the published figure lies inside.

Exit status: 0 all seeds done; 1 a seed failed, and the others are on the page; 2 bad input or configuration; 75
stopped, or jobs are submitted: the same command continues from there.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from app.config.data import DataScale
from app.record.documents import DONE
from app.report.page import write_page
from app.report.read import refusing_other_versions
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED
from common.documents import encode
from common.errors import UserError
from common.files import write_atomically
from common.redact import redact_arguments
from data_prep.dataset.format import MANIFEST_NAME
from extensions.reproduce.convergence import check_convergence
from extensions.reproduce.documents import DOCUMENT, PAGE, RECIPE, Reproduction, read_reproduction
from extensions.reproduce.figures import finished_runs, registry_path, summarise
from extensions.reproduce.keys import ReproduceConfig
from extensions.reproduce.page import reproduction_page
from extensions.reproduce.seeds import (
    Seed,
    changed_keys,
    have_begun,
    is_default_place,
    place_of,
    require_same_recipe,
    run_seeds,
    score_test_split,
    seeds_of,
    submit,
    training_arguments,
    with_copied_recipe,
)

EXIT_FAILED = 1
LOCK = ".reproduce.lock"


def main(config: ReproduceConfig) -> int:
    """Run what is not done, and write the page; return the exit status."""
    logging.basicConfig(format="%(message)s")
    arguments, out = training_arguments(sys.argv[1:]), Path(config.out)
    former = _former_arguments(out)
    if former is not None and is_default_place(sys.argv[1:]) and not _are_same(former, arguments):
        out = place_of(arguments, out)
        print(f"{config.out} has runs with {_in_words(former)}; these go to {out}", flush=True)
        former = _former_arguments(out)
    if former is not None:
        _require_same(out, former, arguments)
    seeds = seeds_of(out, config.seeds)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / LOCK, blocking=False):
            return _reproduce(config, arguments, seeds, out)
    except Timeout as error:
        raise UserError(
            f"out={out}: another process makes runs there; wait for its end, or give another out"
        ) from error


def _former_arguments(out: Path) -> list[str] | None:
    """The recorded arguments of the runs in a directory; None without any."""
    try:
        return list(read_reproduction(out / DOCUMENT).arguments)
    except FileNotFoundError:
        return None


def _are_same(former: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether recorded arguments are those of a command line, in any order."""
    return sorted(former) == sorted(redact_arguments(arguments))


def _in_words(former: Sequence[str]) -> str:
    """Recorded arguments for a message."""
    return " ".join(former) or "no further keys"


def _require_same(out: Path, former: Sequence[str], arguments: Sequence[str]) -> None:
    """Raises UserError if the recorded arguments of the runs in a directory are others."""
    if any(argument.startswith("config=") for argument in former):
        raise UserError(
            f"out={out}: reproduce.json names a file of keys, as older versions wrote it, which may have changed; "
            "remove reproduce.json if it has not, or give another out"
        )
    if not _are_same(former, arguments):
        raise UserError(f"out={out}: its runs were made with {_in_words(former)}; type these, or give another out")
    require_same_recipe(arguments, out)


def _reproduce(config: ReproduceConfig, arguments: Sequence[str], seeds: Sequence[Seed], out: Path) -> int:
    of_runs = with_copied_recipe(arguments, out)
    _write(config, arguments, of_runs, seeds, {}, out)  # so that what is there is known to be of these arguments
    if config.sbatch is not None:
        is_there = (config.data.root / MANIFEST_NAME).exists()
        jobs = 0
        try:
            for line in submit(seeds, of_runs, config.sbatch, is_there):
                print(line, flush=True)
                jobs += 1
        except UserError:
            if not jobs and not have_begun(seeds):
                _remove_documents(out)
            raise
        statuses = {seed.number: score_test_split(seed) for seed in seeds if seed.status in DONE}
        failed = {seed: status for seed, status in statuses.items() if status}
    else:
        failed = run_seeds(seeds, of_runs, config.processes)
    if EXIT_BAD_INPUT in failed.values() and not have_begun(seeds):
        _remove_documents(out)
        return EXIT_BAD_INPUT
    stopped = [seed for seed, status in failed.items() if status == EXIT_STOPPED]
    failed = {seed: status for seed, status in failed.items() if status != EXIT_STOPPED}
    document = _write(config, arguments, of_runs, seeds, failed, out)
    for _, sentence in document.verdict:
        print(sentence)
    print(out / PAGE)
    if config.registry is not None:
        _register(config, config.registry, of_runs, document, out)
    if stopped or (config.sbatch is not None and any(seed.status not in DONE for seed in seeds)):
        return EXIT_STOPPED
    return EXIT_FAILED if failed else EXIT_DONE


def _remove_documents(out: Path) -> None:
    """Of nothing that has begun: other arguments are welcome."""
    for name in (DOCUMENT, PAGE, RECIPE):
        (out / name).unlink(missing_ok=True)


def _register(
    config: ReproduceConfig, registry: str, of_runs: Sequence[str], document: Reproduction, out: Path
) -> None:
    """Copy the document to a registry; or print why it is not of the recipe as it is, with all its seeds."""
    reason = ""
    if any(run.error is not None or run.status not in DONE for run in document.runs):
        reason = "not all seeds are done"
    elif config.data.scale is DataScale.tiny:
        reason = "data.scale=tiny is not the recipe itself"
    elif recipe_changes := changed_keys(of_runs):
        reason = f"the recipe was changed ({' '.join(recipe_changes)})"
    if reason:
        print(f"registry={registry}: not written, as {reason}")
    else:
        write_atomically(registry_path(registry, document), (out / DOCUMENT).read_bytes())


def _write(
    config: ReproduceConfig,
    arguments: Sequence[str],
    of_runs: Sequence[str],
    seeds: Sequence[Seed],
    failed: dict[int, int],
    out: Path,
) -> Reproduction:
    """Write document and page from what is on the disk; return the document."""
    directories = [seed.directory for seed in seeds if seed.status in DONE]
    is_whole = len(directories) == len(seeds)
    convergence = check_convergence(config.mlperf.benchmark, directories) if config.mlperf.enabled and is_whole else ""
    with refusing_other_versions(f"[{','.join(map(str, directories))}]"):
        document = summarise(config, arguments, of_runs, seeds, failed, convergence)
        page = reproduction_page(config, document, finished_runs(seeds), out)
    write_atomically(out / DOCUMENT, (encode(document, indent=1) + "\n").encode())
    write_page(out / PAGE, page)
    return document
