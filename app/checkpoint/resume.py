"""Composition: what a checkpoint of a session holds, and how a session goes on from one."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app import checkpoint
from app.checkpoint.safe_reader import SafeReader
from app.config import AppConfig, to_plain
from app.runtime import rng
from app.training.session import Session
from app.training.state import State
from common.errors import UserError
from data_prep.dataset.format import Manifest


class Resumed(NamedTuple):
    """Where a session goes on: its state, the seconds already spent, and a line that says so."""

    state: State
    seconds: dict[str, float]
    line: str


def saved(session: Session, state: State, seconds: dict[str, float]) -> checkpoint.Saved:
    """What a checkpoint holds beside tensors; a collective call."""
    runtime = session.runtime
    values = {
        "step": state.step,
        "samples": state.step * session.config.train.global_batch_size,
        "epoch": state.epoch,
        "step_in_epoch": state.step_in_epoch,
        "input_wait": state.input_wait,
        "skipped": state.skipped,
        "evaluation": state.evaluation,
        "best": state.best,
        "seconds": seconds,
        "world_size": runtime.world_size,
        "layout": _layout(session),
        "dataset": str(session.root),
        "dataset_digest": session.manifest.digest,
        "fingerprint": fingerprint(session.config),
    }
    arrays: dict[str, NDArray[Any]] = {
        "losses": state.all_losses(),
        "step_seconds": state.all_step_seconds(),
        "accuracies": state.accuracies,
        **{name: np.stack(runtime.gather(one)) for name, one in rng.capture(runtime.device).items()},
    }
    return checkpoint.Saved(values, arrays)


def restore(path: Path, session: Session) -> Resumed:
    """Load a checkpoint into a session; a collective call.

    Raises:
        UserError: it belongs to a run of another configuration, or is damaged.
    """
    saved = checkpoint.read(path)
    require_dataset(path, saved.state["dataset"], saved.state["dataset_digest"], session.root, session.manifest)
    now = fingerprint(session.config)
    for key, value in saved.state["fingerprint"].items():
        if now.get(key) != value:
            raise UserError(
                f"{key}={now.get(key)}: the run at {path} was started with {value}; "
                "give another run.name, or checkpoint.resume=never to start over"
            )
    load_tensors(path, session, with_optimizer=True)
    values, arrays = saved.state, saved.arrays
    state = State(
        step=values["step"],
        epoch=values["epoch"],
        step_in_epoch=values["step_in_epoch"],
        losses=[arrays["losses"]],
        step_seconds=[arrays["step_seconds"]],
        input_wait=values["input_wait"],
        accuracies=arrays["accuracies"],
        skipped=values["skipped"],
        evaluation=values["evaluation"],
        best=values["best"],
    )
    line = f"resume: from {path}, step {state.step}"
    if values["world_size"] == session.runtime.world_size:
        mine = {name: states[session.runtime.rank] for name, states in arrays.items() if name.startswith("rng_")}
        rng.restore(mine, session.runtime.device)
    then, now = values["layout"], _layout(session)
    if changes := [f"{key} {then[key]} then, {now[key]} now" for key in now if then[key] != now[key]]:
        line += f" ({'; '.join(changes)}: results agree with an uninterrupted run within rounding only, losses to 1e-5)"
    return Resumed(state, values["seconds"], line)


def load_tensors(path: Path, session: Session, with_optimizer: bool) -> None:
    """Load a checkpoint's parameters, without running what somebody may have put into it; a collective call.

    Raises:
        UserError: it does not fit the session's model, or holds more than tensors.
    """
    optimizer = session.optimizer if with_optimizer else None
    checkpoint.load_tensors(path, _reader(path), session.model, optimizer)


def read_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """Overwrite tensors such as a checkpoint holds by a checkpoint's. Raises as `load_tensors`."""
    checkpoint.read_tensors(path, _reader(path), tensors)


def _reader(path: Path) -> SafeReader:
    reader = SafeReader(path)
    reader.read_metadata()  # what it refuses is said in one line here; torch would wrap it in tracebacks
    return reader


def require_dataset(trained: Path, path_then: str, digest_then: str, root: Path, manifest: Manifest) -> None:
    """Raise UserError if a dataset is not the one that the run or checkpoint `trained` has read."""
    if manifest.digest != digest_then:
        elsewhere = f"{path_then} as it was then" if str(root) == path_then else path_then
        raise UserError(
            f"{root}: not the dataset that {trained} was trained on, {elsewhere}; give that, or another run"
        )


def _layout(session: Session) -> dict[str, Any]:
    """What may change on the way, but not without a change in rounding."""
    return {
        "processes": session.runtime.world_size,
        "threads": session.runtime.num_threads,
        "platform": session.runtime.platform.value,
        "sharding": session.plan.summary(),
    }


def fingerprint(config: AppConfig) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from, by key."""
    plain = to_plain(config)
    keys = {
        f"{group}.{key}": value
        for group in ("model", "loss", "optimizer", "schedule")
        for key, value in plain[group].items()
    }
    keys |= {f"train.{key}": plain["train"][key] for key in ("seed", "global_batch_size")}
    keys |= {f"data.{key}": value for key, value in plain["data"].items() if key.startswith("shuffle")}
    keys |= {f"sharding.qcomm.{way}": value for way, value in plain["sharding"]["qcomm"].items()}
    bags = plain["data"]["multi_hot"]
    keys |= {f"data.multi_hot.{key}": bags[key] for key in ("sizes", "distribution", "seed")}
    keys["runtime.precision"] = plain["runtime"]["precision"]
    return keys
