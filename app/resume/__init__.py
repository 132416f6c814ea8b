"""Composition: what a checkpoint of a session holds (`state`), and which one a command means (`choice`)."""

from app.resume.choice import (
    Trained,
    choose,
    forget_later,
    newest_of,
    open_checkpoint,
    open_dataset,
    trained_config,
    undamaged,
)
from app.resume.state import fingerprint, load_tensors, read_tensors, restore, saved

__all__ = [
    "Trained",
    "choose",
    "fingerprint",
    "forget_later",
    "load_tensors",
    "newest_of",
    "open_checkpoint",
    "open_dataset",
    "read_tensors",
    "restore",
    "saved",
    "trained_config",
    "undamaged",
]
