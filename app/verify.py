"""python -m app.verify run=runs/NAME: replay a run from its record and say whether it came out the same.

The dataset must be the one that the run read. The replay trains from the first step to the run's newest
checkpoint, in a directory of its own, and is compared with it: each step's loss, each parameter. On the same
number of processes and threads of one kind of CPU the bits are equal; elsewhere a tolerance decides. Differences
in code, versions and hardware are listed, since they are where an explanation begins.

Exit status: 0 identical, or equal within the tolerance; 1 different; 2 bad input or configuration; 75 stopped.
"""

import json
import logging
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app import progress, provenance, record, resume, runtime, session
from app.config import CONFIG_DIR, AppConfig, RecordConfig, VerifyConfig
from app.data import verify_splits
from app.record import Record
from app.run import Run
from app.signals import StopRequest
from app.validation import validate
from common.cli import EXIT_DONE, EXIT_STOPPED, run_command
from data_prep.format import load_manifest

log = logging.getLogger("clickwork")

EXIT_DIFFERENT = 1
VERDICTS = ("identical", "equal within tolerance", "different")


def main(config: VerifyConfig) -> int:
    """Replay and compare; return the exit status."""
    began, directory, stop = time.perf_counter(), Path(config.run), StopRequest()
    trained = resume.trained_config(directory, config.runtime, config.data_path)
    validate(trained)
    here = runtime.start(trained.runtime, trained.train.seed, trained.train.deterministic)
    progress.log_to_terminal(here.rank)
    try:
        path = Path(here.on_rank_0(lambda: resume.newest_of(directory, None)))
        root = Path(trained.data.path or "")
        manifest = load_manifest(root)
        recorded = resume.trained_on(path, root, manifest)
        here.on_rank_0(lambda: verify_splits(root, manifest, ["train", trained.eval.split], trained.data.verify,
                                              lambda: bool(stop)))  # fmt: skip
        again = _replay_config(trained, recorded.state["step"], here.num_threads)
        this = session.build(again, here, root, manifest)
        scratch = Path(here.on_rank_0(tempfile.mkdtemp))
        try:
            run = Run(this, Record(scratch, here.rank), stop, began)
            if run.train() == "interrupted":
                return EXIT_STOPPED
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        replayed = {name: values.copy() for name, values in this.parameters()}
        resume.load_tensors(path, this, with_optimizer=False)
        report = {"run": str(directory), "checkpoint": path.name, "steps": recorded.state["step"],
                  "losses": _compare(recorded.arrays["losses"], run.state.all_losses(), relative=True),
                  "parameters": {name: _compare(values, replayed[name], relative=False)
                                 for name, values in this.parameters()}}  # fmt: skip
        return _tell(directory, report, config.tolerance) if here.rank == 0 else EXIT_DONE
    finally:
        runtime.stop()


def _replay_config(trained: AppConfig, steps: int, num_threads: int) -> AppConfig:
    """The run's configuration, to the step of its checkpoint, without stops on the way."""
    train = replace(
        trained.train, epochs=None, max_samples=None, max_steps=steps, eval_every_steps=None, target_auc=None
    )
    never = replace(trained.checkpoint, every_steps=None, every_minutes=None, resume="never")
    threads = replace(trained.runtime, num_threads=num_threads)
    return replace(trained, train=train, checkpoint=never, runtime=threads, record=RecordConfig(tensorboard=False))


def _compare(recorded: NDArray[np.float32], replayed: NDArray[np.float32], relative: bool) -> dict[str, Any]:
    """The first place (row-major) where bits differ, None if nowhere, and the largest difference."""
    if recorded.shape != replayed.shape:
        return {"first": 0, "largest": float("inf")}
    bits = np.flatnonzero(recorded.view(np.uint32) != replayed.view(np.uint32))
    if not len(bits):
        return {"first": None, "largest": 0.0}
    difference = np.abs(recorded.astype(np.float64) - replayed)
    if relative:
        difference /= np.abs(recorded)
    return {"first": int(bits[0]), "largest": float(difference.max())}


def _tell(directory: Path, report: dict[str, Any], tolerance: float) -> int:
    """Print the verdict and its reasons, as JSON on stdout; return the exit status."""
    losses, parameters = report["losses"], report["parameters"]
    results = {"losses": losses, **parameters}
    differing = [name for name, result in results.items() if result["first"] is not None]
    largest = max(result["largest"] for result in results.values())
    verdict = VERDICTS[0] if not differing else VERDICTS[1] if largest <= tolerance else VERDICTS[2]
    then = json.loads((directory / record.MANIFEST).read_bytes())
    changed = _changes(then, provenance.describe_run())
    report["parameters"] = {name: parameters[name] for name in differing if name != "losses"}
    report |= {"verdict": verdict, "tolerance": tolerance, "largest_difference": largest, "changed_since": changed}
    log.info("verify: %s: %s", directory, verdict)
    if losses["first"] is not None:
        log.info(
            "verify: losses differ from step %d on, by %.3g relative at most", losses["first"] + 1, losses["largest"]
        )
    for name in [name for name in differing if name != "losses"][:1]:
        result = parameters[name]
        log.info("verify: the first tensor that differs is %s, from element %d on, by %.3g at most",
                 name, result["first"], result["largest"])  # fmt: skip
    for line in changed:
        log.info("verify: since then: %s", line)
    print(json.dumps(report, indent=1))
    return EXIT_DIFFERENT if verdict == VERDICTS[2] else EXIT_DONE


def _changes(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of code, versions, hardware and environment is not as it was."""
    return [
        f"{part} {key}: {then[part].get(key)} then, {now[part].get(key)} now"
        for part in ("code", "versions", "hardware", "environment")
        for key in sorted(then.get(part, {}).keys() | now[part].keys())
        if then[part].get(key) != now[part].get(key)
    ]


if __name__ == "__main__":
    runtime.leave(run_command(main, VerifyConfig, CONFIG_DIR, name="verify"))
