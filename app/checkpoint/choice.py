"""Which checkpoint a command means, and with which configuration it goes on from it."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf.errors import OmegaConfBaseException

from app import checkpoint, record
from app.checkpoint.resume import require_dataset
from app.config import AppConfig, CheckpointConfig, RuntimeConfig, from_plain
from app.runtime.platform import Runtime
from common.errors import UserError
from data_prep.dataset.format import Manifest, load_manifest

log = logging.getLogger("clickwork")


class Trained(NamedTuple):
    """A checkpoint, its state (see `app.resume.saved`), and the dataset that its run was trained on."""

    path: Path
    state: dict[str, Any]
    root: Path
    manifest: Manifest


def choose(config: CheckpointConfig, checkpoints: Path) -> str | None:
    """The path of the checkpoint to start from, if any; damaged ones are passed over with a warning.

    Where torchrun started the job again after a loss, that is the run's newest, whatever the job began with.

    Raises:
        UserError: the one that was asked for is not there or is damaged.
    """
    wanted = config.resume
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    if restarted and wanted != "auto" and checkpoint.whole_checkpoints(checkpoints):
        log.info("resume: torchrun started the job again, so checkpoint.resume is auto now, not %s", wanted)
        wanted = "auto"
    if wanted == "never":
        return None
    if wanted == "auto":
        path, skipped = checkpoint.newest(checkpoints)
        for reason in skipped:
            log.warning("resume: passed over %s", reason)
        return None if path is None else str(path)
    asked = Path(wanted)
    if asked.name == checkpoint.LATEST and asked.is_file():
        asked = asked.parent.parent
    if (asked / record.CHECKPOINTS).is_dir():
        path, _ = checkpoint.newest(asked / record.CHECKPOINTS)
        asked = path or asked
    checkpoint.verify(asked)
    return str(asked)


def undamaged(run: Path) -> list[Path]:
    """A run's whole and undamaged checkpoints, oldest first; of the others, a warning.

    Raises:
        UserError: there is none, nor a summary of a run that trained.
    """
    good = []
    for path in checkpoint.whole_checkpoints(run / record.CHECKPOINTS):
        try:
            checkpoint.verify(path)
            good.append(path)
        except UserError as error:
            log.warning("checkpoint: passed over %s", error)
    if not good and not (record.read_summary(run) or {}).get("steps"):
        raise UserError(f"run={run}: no whole checkpoint and no summary of a training; train it first")
    return good


def newest_of(run: Path, asked: str | None) -> str:
    """The path of the checkpoint asked for (`best`, or a path), else of the run's newest that is not damaged.

    Raises:
        UserError: there is none.
    """
    if asked in (checkpoint.BEST, checkpoint.LATEST):
        named = checkpoint.pointed_to(run / record.CHECKPOINTS, asked)
        if named is None:
            raise UserError(f"checkpoint={asked}: {run} has none that is whole")
        asked = str(named)
    if asked:
        checkpoint.verify(Path(asked))
        return asked
    path, skipped = checkpoint.newest(run / record.CHECKPOINTS)
    if path is None:
        raise UserError("; ".join(skipped) or f"run={run}: no whole checkpoint yet; train it first")
    for reason in skipped:
        log.warning("checkpoint: passed over %s", reason)
    return str(path)


def open_checkpoint(run: Path, asked: str | None, config: AppConfig, here: Runtime) -> Trained:
    """The checkpoint of a run that `newest_of` names, with its dataset; `config`: as `trained_config` gave it.

    Raises:
        UserError: there is none, or the dataset is not the one that it was trained on.
    """
    path = Path(here.on_rank_0(lambda: newest_of(run, asked)))
    state = checkpoint.read(path).state
    return Trained(path, state, *open_dataset(config, path, state["dataset"], state["dataset_digest"]))


def open_dataset(config: AppConfig, trained: Path, path_then: str, digest_then: str) -> tuple[Path, Manifest]:
    """The dataset of a configuration, and where it is.

    Raises:
        UserError: it is not the one that the run or checkpoint `trained` has read.
    """
    root = Path(config.data.path or "")
    manifest = load_manifest(root)
    require_dataset(trained, path_then, digest_then, root, manifest)
    return root, manifest


def trained_config(run: Path, asked: RuntimeConfig, data_path: str | None) -> AppConfig:
    """A run's own configuration, with what the user asked of the runtime and where the dataset is now.

    Raises:
        UserError: the directory is not a run's, or one of another version.
    """
    try:
        config = from_plain(record.read_config(run))
    except OmegaConfBaseException as error:
        raise UserError(f"run={run}: {record.CONFIG} is of another version ({error})") from error
    config.runtime = replace(
        asked,
        precision=asked.precision or config.runtime.precision,
        num_threads=asked.num_threads or config.runtime.num_threads,
    )
    if data_path:
        config.data = replace(config.data, path=data_path)
    return config


def forget_later(checkpoints: Path, start: Path, best_step: int | None) -> None:
    """Remove this run's checkpoints that are not on the way from `start`: later ones, or all if it is elsewhere.

    best_step: the step of the highest AUC on the way; `best` is made to name its checkpoint, if that is there.
    """
    own = start.parent.resolve() == checkpoints.resolve()
    for path in checkpoint.whole_checkpoints(checkpoints):
        if not own or path.name > start.name:
            log.info("resume: removing %s, which does not come before %s", path, start)
            checkpoint.remove(path)
    best = None if best_step is None else checkpoint.name_of(best_step)
    there = best in [path.name for path in checkpoint.whole_checkpoints(checkpoints)]
    checkpoint.point_to_best(checkpoints, best if there else None)
