"""Runs' directories with known figures, as app.training.loop leaves them."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from msgspec.structs import replace

from app.config.app_config import CONFIG_DIR, AppConfig
from app.metrics.documents import EvaluationFigures
from app.metrics.quality import click_curves, click_metrics
from app.metrics.timing import step_time_histogram, throughput
from app.record.provenance import describe_run
from common.compose import compose_config
from common.documents import convert, encode, plain, plain_object
from tests.app.run_files import LEAST, LEAST_MANIFEST

MANIFEST = {"format": "clickwork-run", **LEAST_MANIFEST, **plain_object(describe_run())}


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return plain(compose_config(AppConfig, CONFIG_DIR, ["run.name=x", *overrides]))


PLANNED: dict[str, Any] = {"type": "table_wise", "kernel": "fused", "shards": [], "cache_load_factor": None}
PLANNED |= {"ranks": []}


def write_run(
    directory: Path,
    *overrides: str,
    steps: int = 100,
    every: int = 10,
    seed: int = 0,
    step_ms: float = 10.0,
    gain: float = 1.0,
    world_size: int = 1,
    platform: str = "cpu",
    status: str = "completed",
    bayes: dict[str, Any] | None = None,
    manifest: dict[str, Any] | None = None,
    best: dict[str, Any] | None = None,
    digest: str = "d" * 64,
    labels_digest: str | None = None,
) -> Path:
    """A run whose logits know the labels by `gain`, whose steps take about `step_ms`."""
    config = copy.deepcopy(_composed(overrides))
    config["run"] = {"name": directory.name, "dir": f"runs/{directory.name}"}
    config["train"]["seed"] = seed
    rng = np.random.default_rng([seed, round(1e6 * abs(gain))])
    labels = (rng.random(4000) < 0.25).astype(np.float32)
    logits = (rng.standard_normal(4000) + gain * labels - 1.5).astype(np.float32)
    seconds = (step_ms / 1e3 * rng.uniform(0.95, 1.05, steps)).astype(np.float32)
    batch = config["train"]["global_batch_size"]
    dataset: dict[str, Any] = {"path": "data/x", "digest": digest, "labels": {"val": labels_digest}}
    dataset |= {"rows": {"train": 10_000, "val": 4000}, "label_rate": 0.25, "encoding": "vocabulary"}
    dataset |= {"sources": ["day_0.tsv"], "bayes": bayes}
    run_manifest = {**copy.deepcopy(MANIFEST), "dataset": dataset, "seeds": {"train.seed": seed}}
    run_manifest |= {"world_size": world_size, "platform": platform, "num_threads": 1, **(manifest or {})}
    run_manifest["hardware"] = {**MANIFEST["hardware"], **run_manifest["hardware"]}
    table = {"features": 1, "by_id": False, "ids_per_sample": 1.0, "num_embeddings": 1000, "embedding_dim": 16}
    run_manifest["tables"] = {"t_a": {**table, "bytes": 64_000}}
    run_manifest["plan"] = {"t_a": {**PLANNED, "ranks": [0]}}
    losses = 0.45 + 0.25 * np.exp(-np.arange(1, steps + 1) / 30) + 0.01 * rng.standard_normal(steps)
    windows = range(every, steps + 1, every)
    mean_losses, mean_seconds = (
        values[: len(windows) * every].reshape(-1, every).mean(axis=1, dtype=np.float64).tolist()
        for values in (losses, seconds)
    )
    same: dict[str, Any] = {"event": "train", "epoch": 0, "steps": every, "accuracy": 0.75, "lr": 0.01}
    same |= {"input_wait_fraction": 0.01, "host_bytes": int(5e8), "device_bytes": None}
    same |= {"phase_seconds": {"forward": 0.004, "backward": 0.005}}
    events: list[dict[str, Any]] = []
    for step, loss, duration in zip(windows, mean_losses, mean_seconds, strict=True):
        event = {"step": step, "samples": step * batch, "seconds": step * step_ms / 1e3, "loss": loss, "logloss": loss}
        rates = {"gradient_norm": 0.5 + 1 / step, "samples_per_second": batch / duration}
        events.append({**same, **event, **rates})
    figures = click_metrics(logits, labels)
    evaluation = {"split": "val", "samples": 4000, **figures}
    last = {"event": "eval", "step": steps, "samples": steps * batch, "seconds": 9.0, "eval_samples": 4000}
    events.append({**last, "split": "val", **{k: v for k, v in figures.items() if k != "samples"}})
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    (directory / "manifest.json").write_text(json.dumps(run_manifest))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    curves = click_curves(logits, labels, convert(evaluation, EvaluationFigures))
    (directory / "curves.json").write_text(encode(replace(curves, step=steps, split="val")))
    (directory / "step_times.json").write_text(encode(step_time_histogram(seconds)))
    phases = {"forward": 0.3, "backward": 0.5, "optimizer": 0.1}
    ended = {"status": status, "steps": steps, "samples": steps * batch, "world_size": world_size, "power": None}
    summary = {
        **LEAST,
        **ended,
        "parameters": {"embedding": 16_000, "dense": 100, "total": 16_100},
        "train": {"loss": 0.46, "logloss": 0.46, "skipped_steps": 0},
        "best": best and {"monitor": None, "value": None, **best},
        "eval": {"step": steps, **evaluation},
        "last": {"step": steps, **evaluation},
        "covers": {"train": {"steps": min(steps, int(config["train"]["log_every_steps"]))}},
        "throughput": throughput(seconds, 0.1, batch, world_size, 0),
        "memory": {"host_peak_bytes": int(6e8), "device_peak_bytes": None},
        "phase_seconds": {name: share * step_ms / 1e3 for name, share in phases.items()},
        "tables": {"t_a": {"rows": 1000, "rows_touched": 250, "mean_norm": 0.125, "largest_norm": 0.5}},
        "seconds": {"total": 12.0, "train": 10.0, "eval": 1.0, "checkpoint": 0.5},
        "digest": {"parameters": f"{seed}{gain}{platform}", "losses": "l"},
    }
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory
