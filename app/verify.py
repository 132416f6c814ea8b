"""python -m app.verify run=runs/NAME: replay a run from its record and compare the results.

The dataset must be the one that the run read. The replay trains from the first step in a temporary directory, up to
the newest of the run's checkpoints, and is compared at each of them: each step's loss, each parameter, the optimizer's
state. Of a run without checkpoints the records are compared: losses, evaluation and digests. With the same number of
processes and threads and the same kind of CPU the bits are equal; otherwise a tolerance decides. Differences in code,
versions and hardware are listed, as they may explain it.

Exit status: 0 identical, or equal within the tolerance; 1 different; 2 bad input or configuration.
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

from app.checkpoint import files
from app.checkpoint.files import read
from app.config import CONFIG_DIR, AppConfig, RecordConfig, ShardingConfig, VerifyConfig, validate
from app.data.shards import verify_splits
from app.record import provenance
from app.record.directory import RunDirectory
from app.record.reading import METRICS, read_events, read_manifest, read_summary
from app.replay.compare import ReplayComparison, bitwise_difference, plain
from app.runtime import platform as runtime
from app.runtime import process_group
from app.sharding.plan import FORMAT
from app.training import resume, session
from app.training.run import TrainingRun
from common.cli import EXIT_DONE, run_command
from common.errors import UserError

log = logging.getLogger("clickwork")

EXIT_DIFFERENT = 1
VERDICTS = ("identical", "equal within tolerance", "different")
EVAL_FIGURES = ("logloss", "auc")
LAYOUT = ("image", "base_image", "world_size", "num_threads", "platform")
BY_LAUNCHER = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")  # their effects are compared by LAYOUT


def main(config: VerifyConfig) -> int:
    """Replay and compare; return the exit status."""
    began, directory = time.perf_counter(), Path(config.run)
    trained = resume.trained_config(directory, config.runtime, config.data.path)
    validate(trained)
    with process_group.joined(trained, process_group.READING) as here:
        then = read_manifest(directory)
        _log_layout(directory, then, here)
        paths = json.loads(here.on_rank_0(lambda: json.dumps([str(path) for path in files.undamaged(directory)])))
        root, manifest = resume.open_dataset(trained, directory, then["dataset"]["path"], then["dataset"]["digest"])
        here.on_rank_0(lambda: verify_splits(root, manifest, ["train", trained.eval.split], trained.data))
        figures = read_summary(directory) or {}
        if not paths and not figures.get("steps"):
            raise UserError(f"run={directory}: no complete checkpoint and no summary of a training; train it first")
        checkpoints = {read(Path(path)).state["step"]: Path(path) for path in paths}
        steps = max(checkpoints) if checkpoints else figures["steps"]
        scratch = Path(here.on_rank_0(tempfile.mkdtemp))
        try:
            replayed = _as_planned(_replay_config(trained, steps, here.num_threads), then, here, scratch)
            this = session.build(replayed, here, root, manifest)
            run = TrainingRun(this, RunDirectory(scratch, here.rank), began)
            comparison = run.checkpointer = ReplayComparison(run, checkpoints)
            run.train()
            if here.rank:
                return EXIT_DONE
            report = {"run": str(directory), "steps": steps, "compared_at": sorted(checkpoints)}
            if checkpoints:
                recorded = read(checkpoints[steps]).arrays["losses"]
                report |= comparison.report(bitwise_difference(recorded, run.state.all_losses(), floor=0.0))
            else:
                report |= _compare_records(directory, scratch)
            layout = {"world_size": here.world_size, "num_threads": here.num_threads, "platform": here.platform.value}
            changed = _changes(then, {**provenance.describe_run(), **layout, "files": this.describe_files()})
            return _report(directory, report, changed, config.tolerance)
        finally:
            if here.rank == 0:  # the other ranks get here while it still writes
                shutil.rmtree(scratch, ignore_errors=True)


def _replay_config(trained: AppConfig, steps: int, num_threads: int) -> AppConfig:
    """The run's configuration, to the step of its newest checkpoint, without checkpoints and early stops."""
    train = replace(
        trained.train, epochs=None, max_samples=None, max_steps=steps, eval_every_steps=None, eval_every_fraction=None,
        target_auc=None, target_accuracy=None, max_minutes=None,
    )  # fmt: skip
    never = replace(trained.checkpoint, every_steps=None, every_minutes=None, resume="never")
    threads = replace(trained.runtime, num_threads=num_threads)
    once, quiet = replace(trained.eval, train_split=False), RecordConfig(tensorboard=False)
    return replace(trained, train=train, eval=once, checkpoint=never, runtime=threads, record=quiet)


def _as_planned(config: AppConfig, then: dict[str, Any], here: runtime.Runtime, scratch: Path) -> AppConfig:
    """With the plan that the run recorded, where the processes are the same: a planner may choose another today."""
    layout = {"world_size": here.world_size, "local_world_size": here.local_world_size, "platform": here.platform.value}
    if any(then.get(key) != value for key, value in layout.items()):
        return config
    path = scratch / "plan.json"
    here.on_rank_0(lambda: str(path.write_text(json.dumps({"format": FORMAT, **layout, "tables": then["plan"]}))))
    return replace(config, sharding=ShardingConfig(plan=str(path), qcomm=config.sharding.qcomm))


def _compare_records(then: Path, now: Path) -> dict[str, Any]:
    """Compare two runs' records, for the JSON: losses of the windows of steps, the evaluation, digests.

    Raises:
        UserError: they have no step in common.
    """
    losses, figures = [], []
    for directory in (then, now):
        losses.append({event["step"]: event["loss"] for event in read_events(directory, "train")})
        figures.append(read_summary(directory) or {})
    common = sorted(losses[0].keys() & losses[1].keys())
    if not common:
        raise UserError(f"run={then}: {METRICS} has no losses to compare")
    first, second = (np.array([of[step] for step in common], np.float64) for of in losses)
    found = bitwise_difference(first, second, floor=0.0)
    evaluation = {
        key: abs(figures[0]["eval"][key] - figures[1]["eval"][key])
        for key in EVAL_FIGURES
        if figures[0]["eval"].get(key) is not None and figures[1]["eval"].get(key) is not None
    }
    return {
        "losses": plain(found, lambda index: {"first_step": common[index[0]]}),
        "tensors": {},
        "evaluation": evaluation,
        "same_digests": {
            key: value == figures[1]["digest"][key] for key, value in figures[0]["digest"].items() if value is not None
        },
        "largest_difference": max([0.0, found.largest if found else 0.0, *evaluation.values()]),
    }


def _log_layout(directory: Path, then: dict[str, Any], here: runtime.Runtime) -> None:
    if then["world_size"] != here.world_size:
        log.info("verify: %s had %d process(es), here are %d: bits will differ; for equal bits, start with NPROC=%d "
                 "(make) or torchrun", directory, then["world_size"], here.world_size, then["world_size"])  # fmt: skip


def _report(directory: Path, report: dict[str, Any], changed: list[str], tolerance: float) -> int:
    """Print the verdict and its reasons, as JSON on stdout; return the exit status."""
    same = report["losses"] is None and not report["tensors"] and all(report.get("same_digests", {}).values())
    within = report["largest_difference"] <= tolerance
    verdict = VERDICTS[0] if same else VERDICTS[1] if within else VERDICTS[2]
    log.info("verify: %s: %s", directory, verdict)
    if not report["compared_at"]:
        log.info("verify: the run has no checkpoints: losses, evaluation and digests of its record were compared")
    if report["losses"]:
        log.info("verify: losses differ from step %d on, by %.3g relative at most",
                 report["losses"]["first_step"], report["losses"]["largest"])  # fmt: skip
    for name, found in list(report["tensors"].items())[:1]:
        log.info("verify: at step %d (of the checkpoints, %s) the first tensor that differs is %s, from element %s on, "
                 "by %.3g at most", report["tensors_at_step"], ", ".join(map(str, report["compared_at"])), name,
                 list(found["first_element"]), found["largest"])  # fmt: skip
    if not same and not within:
        log.info("verify: the largest difference is %.3g, the tolerance %.3g", report["largest_difference"], tolerance)
    for line in changed:
        log.info("verify: since then: %s", line)
    if not same and not changed:
        log.info("verify: no recorded condition has changed since: on a CPU the bits should have been equal")
    print(json.dumps({**report, "verdict": verdict, "tolerance": tolerance, "changed_since": changed}, indent=1))
    return EXIT_DIFFERENT if verdict == VERDICTS[2] else EXIT_DONE


def _changes(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Changes of code, versions, hardware, environment, files of initial values, and layout."""
    changes = [
        f"{part} {key}: {then[part].get(key)} then, {now[part].get(key)} now"
        for part in ("code", "versions", "hardware", "environment", "files")
        if part in then or part != "files"  # which older runs lack
        for key in sorted(then.get(part, {}).keys() | now[part].keys())
        if key not in BY_LAUNCHER and then[part].get(key) != now[part].get(key)
    ]
    layout = [f"{key}: {then.get(key)} then, {now[key]} now" for key in LAYOUT if then.get(key) != now[key]]
    return layout + changes


if __name__ == "__main__":
    runtime.leave(run_command(main, VerifyConfig, CONFIG_DIR, name="verify"))
