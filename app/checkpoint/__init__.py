"""Checkpoints: torch.distributed.checkpoint for tensors, state.json for the rest; whole or not there.

`files` is what lies on disk, `staging` the copy in host memory, `saver` the writing behind the training's back.
"""

from app.checkpoint.files import (
    BEST,
    LATEST,
    Saved,
    load_tensors,
    name_of,
    newest,
    point_to_best,
    pointed_to,
    prune,
    read,
    read_tensors,
    remove,
    tensors_of,
    verify,
    whole_checkpoints,
)
from app.checkpoint.saver import Saver, Written
from app.checkpoint.staging import Local, local_tensors, num_bytes, stage

__all__ = [
    "BEST",
    "LATEST",
    "Local",
    "Saved",
    "Saver",
    "Written",
    "load_tensors",
    "local_tensors",
    "name_of",
    "newest",
    "num_bytes",
    "point_to_best",
    "pointed_to",
    "prune",
    "read",
    "read_tensors",
    "remove",
    "stage",
    "tensors_of",
    "verify",
    "whole_checkpoints",
]
