"""Composition: what a checkpoint of a session holds (`state`), and which one a command means (`choice`)."""

from app.resume.choice import choose, forget_later, newest_of, trained_config, undamaged
from app.resume.state import fingerprint, load_tensors, read_tensors, require_dataset, restore, saved

__all__ = [
    "choose",
    "fingerprint",
    "forget_later",
    "load_tensors",
    "newest_of",
    "read_tensors",
    "require_dataset",
    "restore",
    "saved",
    "trained_config",
    "undamaged",
]
