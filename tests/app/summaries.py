"""The least that a summary.json and a run's manifest.json hold."""

from typing import Any

from app.record.documents import SUMMARY_VERSION

BY_AUC = {"monitor": None, "value": None}  # of the best evaluation
LEAST: dict[str, Any] = {
    "status": "completed",
    "version": SUMMARY_VERSION,
    "steps": 0,
    "samples": 0,
    "world_size": 1,
    "parameters": {"embedding": 0, "dense": 0, "total": 0},
    "train": {"loss": None, "logloss": None, "skipped_steps": 0},
    "best": None,
    "early_stop": None,
    "eval": {"auc": None},
    "last": {"auc": None},
    "throughput": {},
    "covers": {"train": {"steps": 0}},
}
HARDWARE = {"machine": "x86_64", "system": "Linux", "cpu": "a CPU", "cpu_instructions": "AVX2", "cores": 2}
HARDWARE |= {"cpu_quota": None, "memory_bytes": 1 << 30, "memory_limit_bytes": None, "devices": [], "driver": None}
LEAST_MANIFEST: dict[str, Any] = {
    "code": {"git_sha": "a", "dirty_diff_sha256": None, "sources_sha256": "b"},
    "dataset": {"path": "x", "digest": "d"},
    "hardware": HARDWARE,
    "argv": [],
    **{name: {} for name in ("versions", "environment", "files", "seeds", "plan", "tables")},
    **dict.fromkeys(("image", "base_image")),
    **dict.fromkeys(("world_size", "num_threads", "local_world_size"), 1),
    "platform": "cpu",
    "compile": "none",
    "pipeline": "none",
    "began": "2026-01-02T03:04:05+00:00",
    "from_step": 0,
    "results_before": 0,
}
