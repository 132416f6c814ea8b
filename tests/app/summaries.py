"""The least that a summary.json holds."""

from typing import Any

from app.record.documents import SUMMARY_VERSION

LEAST: dict[str, Any] = {
    "status": "completed",
    "version": SUMMARY_VERSION,
    "steps": 0,
    "samples": 0,
    "world_size": 1,
    "parameters": {"embedding": 0, "dense": 0, "total": 0},
    "train": {},
    "best": None,
    "eval": {"auc": None},
    "last": {"auc": None},
    "throughput": {},
    "covers": {"train": {"steps": 0}},
}
