"""Composition: one run on this process, from where it starts to its summary."""

import logging
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app import checkpoint, loop, optimizer, provenance, sharding
from app.config import AppConfig, to_plain
from app.meter import Meter, throughput
from app.progress import Progress
from app.record import Record
from app.session import Session, mean_over_ranks
from app.signals import StopRequest
from common.errors import UserError
from data_prep.format import Manifest

log = logging.getLogger("clickwork")


class Run:
    """A session that trains, with its state, its directory and its clock."""

    def __init__(self, session: Session, record: Record, stop: StopRequest) -> None:
        self.session, self.record, self.stop = session, record, stop
        self.config, self.runtime = session.config, session.runtime
        self.state = loop.State()
        self.meter = Meter(self.runtime.device)
        self.seconds_before: dict[str, float] = {}
        self.resumed_from = ""
        self.began = self.saved_at = time.perf_counter()
        train = self.config.train
        self.train_split = session.split("train")
        self.steps_per_epoch = self.train_split.num_batches(train.global_batch_size)
        limits = [train.epochs * self.steps_per_epoch, train.max_steps]
        limits.append(None if train.max_samples is None else train.max_samples // train.global_batch_size)
        self.total_steps = min(limit for limit in limits if limit is not None)
        if self.total_steps and not self.steps_per_epoch:
            raise UserError(
                f"train.global_batch_size={train.global_batch_size}: the training split has only "
                f"{self.train_split.rows} rows; use a smaller batch"
            )

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint; a collective call.

        Raises:
            UserError: it belongs to a run of another configuration, or is damaged.
        """
        saved = checkpoint.read_state(path)
        now = fingerprint(self.config, self.session.manifest)
        for key, value in saved.state["fingerprint"].items():
            if now.get(key) != value:
                raise UserError(
                    f"{key}={now.get(key)}: the run at {path} was started with {value}; "
                    "give another run.name, or checkpoint.resume=never to start over"
                )
        checkpoint.load_tensors(path, self.session.model, self.session.optimizer)
        state, arrays = saved.state, saved.arrays
        self.state = loop.State(
            step=state["step"],
            epoch=state["epoch"],
            step_in_epoch=state["step_in_epoch"],
            losses=[arrays["losses"]],
            step_seconds=[arrays["step_seconds"]],
            input_wait=state["input_wait"],
            evaluation=state["evaluation"],
        )
        self.seconds_before = state["seconds"]
        same_world = state["world_size"] == self.runtime.world_size
        if same_world:
            torch.set_rng_state(torch.from_numpy(arrays["rng"][self.runtime.rank]))
        note = "" if same_world else f" with {state['world_size']} processes: results agree within rounding only"
        self.resumed_from = f"{path}, step {self.state.step} of {self.total_steps}{note}"

    def is_done(self, summary: dict[str, Any]) -> bool:
        """Whether the run that wrote this summary had come to the end that the configuration now asks for."""
        if summary["steps"] != self.state.step:
            return False
        return summary["status"] == "target_reached" or (
            summary["status"] == "completed" and self.state.step >= self.total_steps
        )

    def train(self) -> str:
        """Train from the state to the end and write the run's directory; return the status."""
        self.record.begin(to_plain(self.config), run_manifest(self.session), self.state.step)
        if self.resumed_from:
            log.info("resume: from %s", self.resumed_from)
        counts = self.session.parameter_counts()
        log.info("run: %s, %d steps of %d samples, %s parameters (%s in tables), %d process(es) on %s",
                 self.record.directory, self.total_steps, self.config.train.global_batch_size,
                 f"{counts['total']:,}", f"{counts['embedding']:,}", self.runtime.world_size,
                 self.runtime.platform.value)  # fmt: skip
        try:
            status = self._loop()
        except Exception as error:
            self.record.summary(self._failed(error))
            raise
        summary = self._finish(status)
        for line in describe_summary(summary):
            log.info(line)
        return status

    def _loop(self) -> str:
        train, session = self.config.train, self.session

        def batches(epoch: int, first: int) -> Any:
            return session.on_device(
                self.train_split.train_batches(train.global_batch_size, train.seed, epoch, first)
            )

        def set_learning_rate(step: int) -> float:
            lr = optimizer.learning_rate(self.config.optimizer.lr, self.config.schedule, step)
            optimizer.set_learning_rate(session.optimizer, lr)
            return lr

        parts = loop.Parts(
            batches=batches,
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
            forward=session.forward,
            loss=nn.functional.binary_cross_entropy_with_logits,
            optimizer=session.optimizer,
            set_learning_rate=set_learning_rate,
            mean_over_ranks=lambda losses: mean_over_ranks(self.runtime, losses),
            evaluate=self._evaluate,
            save=self._save,
            report=self._report,
            interrupted=self._interrupted,
            checkpoint_due=self._checkpoint_due,
            meter=self.meter,
        )
        shown = self.runtime.rank == 0
        self.progress = Progress(self.total_steps, self.state.step, shown)
        try:
            return loop.train(parts, train, self.state)
        finally:
            self.progress.close()

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, those before a resumption included."""
        spent = {"total": time.perf_counter() - self.began, **self.meter.spent}
        return {kind: value + self.seconds_before.get(kind, 0.0) for kind, value in spent.items()}

    def _summary(self, status: str) -> dict[str, Any]:
        """The figures of summary.json; a collective call. What was not measured is None."""
        runtime, state = self.runtime, self.state
        losses = _joined(state.losses)
        recent = losses[-self.config.train.log_every_steps :]
        device_peak = torch.cuda.max_memory_allocated() if runtime.device.type == "cuda" else None
        return {
            "status": status,
            "steps": state.step,
            "samples": self._samples(),
            "world_size": runtime.world_size,
            "parameters": self.session.parameter_counts(),
            "train": {"logloss": float(recent.mean(dtype=np.float64)) if len(recent) else None},
            "eval": state.evaluation,
            "throughput": throughput(
                _joined(state.step_seconds), state.input_wait, self.config.train.global_batch_size,
                runtime.world_size, self.config.train.warmup_steps_excluded,
            ),
            "memory": {
                "host_peak_bytes": int(runtime.highest(provenance.host_peak_bytes())),
                "device_peak_bytes": None if device_peak is None else int(runtime.highest(device_peak)),
            },
            "power": None,
            "seconds": self.seconds(),
            "digest": {
                "parameters": self.session.parameters_digest(),
                "losses": sha256(losses.tobytes()).hexdigest(),
            },
        }  # fmt: skip

    def _failed(self, error: Exception) -> dict[str, Any]:
        """What can be said without the other processes."""
        keys = ("parameters", "train", "eval", "throughput", "memory", "power", "digest")
        return {
            "status": "failed", "error": str(error), "steps": self.state.step, "samples": self._samples(),
            "world_size": self.runtime.world_size, "seconds": self.seconds(), **dict.fromkeys(keys),
        }  # fmt: skip

    def _finish(self, status: str) -> dict[str, Any]:
        """Write summary.json and results.csv; a collective call."""
        summary = self._summary(status)
        seconds = _joined(self.state.step_seconds)
        window = self.config.train.log_every_steps
        rates = [1 / seconds[i : i + window].mean() for i in range(0, len(seconds) - window + 1, window)]
        spread = float(np.std(rates) / np.mean(rates)) if rates else None
        self.record.summary(summary)
        num_nodes = self.runtime.world_size // self.runtime.local_world_size
        self.record.results(self.config.run.name, summary, self.config.train.global_batch_size, num_nodes, spread)
        return summary

    def _samples(self) -> int:
        return self.state.step * self.config.train.global_batch_size

    def _event(self, kind: str, **values: Any) -> None:
        self.record.event(kind, self.state.step, self._samples(), self.seconds()["total"], **values)

    def _report(self, state: loop.State, lr: float, losses: NDArray[np.float32], seconds: NDArray[np.float32]) -> None:
        loss = float(losses.mean(dtype=np.float64))
        rate = float(self.config.train.global_batch_size * len(seconds) / seconds.sum(dtype=np.float64))
        self._event("train", epoch=state.epoch, loss=loss, logloss=loss, lr=lr, samples_per_second=rate)
        auc = state.evaluation["auc"] if state.evaluation else None
        self.progress.update(state.step, state.epoch, loss, rate, auc)

    def _evaluate(self, state: loop.State) -> dict[str, Any]:
        with self.meter.apart("eval"):
            result = {"step": state.step, **self.session.evaluate(self.config.eval.split)}
        self._event("eval", **{key: value for key, value in result.items() if key not in ("step", "samples")},
                    eval_samples=result["samples"])  # fmt: skip
        log.info("eval: step %d %s", state.step, describe(result))
        if result["auc"] is None:
            log.warning("eval: split %s has not both labels; AUC is not defined", self.config.eval.split)
        return result

    def _save(self, state: loop.State) -> None:
        with self.meter.apart("checkpoint"):
            rng = np.stack(self.runtime.gather(torch.get_rng_state().numpy()))
            values = {
                "step": state.step, "samples": self._samples(), "epoch": state.epoch,
                "step_in_epoch": state.step_in_epoch, "input_wait": state.input_wait,
                "evaluation": state.evaluation, "seconds": self.seconds(), "world_size": self.runtime.world_size,
                "fingerprint": fingerprint(self.config, self.session.manifest),
                "dataset_digest": self.session.manifest.digest,
            }  # fmt: skip
            arrays = {"losses": _joined(state.losses), "step_seconds": _joined(state.step_seconds), "rng": rng}
            path = checkpoint.save(
                self.record.checkpoints, state.step, self.session.model, self.session.optimizer,
                checkpoint.Saved(values, arrays), self.config.checkpoint.keep,
            )  # fmt: skip
        self.saved_at = time.perf_counter()
        self._event("checkpoint", path=path.name)

    def _interrupted(self, step: int) -> bool:
        if self.runtime.world_size == 1:
            return bool(self.stop)
        return step % loop.AGREE_EVERY_STEPS == 0 and self.runtime.highest(bool(self.stop)) > 0

    def _checkpoint_due(self, step: int) -> bool:
        every = self.config.checkpoint
        if every.every_steps is not None and step % every.every_steps == 0:
            return True
        if every.every_minutes is None or step % loop.AGREE_EVERY_STEPS:
            return False
        return self.runtime.highest(time.perf_counter() - self.saved_at) >= every.every_minutes * 60


def fingerprint(config: AppConfig, manifest: Manifest) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from, by key."""
    plain = to_plain(config)
    groups = ("model", "optimizer", "schedule")
    keys = {f"{group}.{key}": value for group in groups for key, value in plain[group].items()}
    for key in ("seed", "global_batch_size"):
        keys[f"train.{key}"] = plain["train"][key]
    for key in ("shuffle", "shuffle_block_rows", "shuffle_window_blocks"):
        keys[f"data.{key}"] = plain["data"][key]
    keys["runtime.precision"] = plain["runtime"]["precision"]
    keys["data.path (digest of its manifest)"] = manifest.digest
    return keys


def run_manifest(session: Session) -> dict[str, Any]:
    """What made this run, for manifest.json."""
    return {
        **provenance.describe_run(),
        "dataset": {"path": str(session.root), "digest": session.manifest.digest},
        "seeds": {"train.seed": session.config.train.seed},
        "world_size": session.runtime.world_size,
        "platform": session.runtime.platform.value,
        "num_threads": session.runtime.num_threads,
        "plan": sharding.plan_summary(session.model),
    }


def describe(evaluation: dict[str, Any]) -> str:
    """An evaluation on one line."""
    figures = ("auc", "ne", "logloss", "accuracy", "calibration", "base_rate")
    shown = [f"{key} {evaluation[key]:.5f}" for key in figures if evaluation[key] is not None]
    return f"{evaluation['split']} ({evaluation['samples']:,} samples) " + " ".join(shown)


def describe_summary(summary: dict[str, Any]) -> list[str]:
    """The final figures as lines for a terminal."""
    rates, seconds = summary["throughput"], summary["seconds"]
    lines = [f"{summary['status']}: {summary['steps']:,} steps, {summary['samples']:,} samples in {seconds['total']:.1f} s"]
    if rates["samples_per_second"] is not None:
        lines.append(
            f"throughput: {rates['samples_per_second']:,.0f} samples/s global, "
            f"{rates['samples_per_second_per_device']:,.0f} per device; step p50 {rates['step_ms_p50']:.2f} ms, "
            f"p95 {rates['step_ms_p95']:.2f} ms; waiting for input {rates['input_wait_fraction']:.1%}"
        )
    return lines


def _joined(pieces: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([np.empty(0, np.float32), *pieces])
