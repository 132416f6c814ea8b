"""How long a run is, in steps of its own dataset."""

from dataclasses import replace
from typing import NamedTuple

from app.config import TrainConfig
from app.config.train import steps_between_evaluations
from common.errors import UserError


class Course(NamedTuple):
    """Steps of an epoch and of the whole run; and `train` with what was given in parts of an epoch now in steps."""

    steps_per_epoch: int
    total_steps: int
    train: TrainConfig


def course_of(train: TrainConfig, rows: int, world_size: int) -> Course:
    """The course over a training split of so many rows.

    Raises:
        UserError: a batch that does not fit the rows or the processes.
    """
    batch = train.global_batch_size
    if batch % world_size:
        raise UserError(
            f"train.global_batch_size={batch}: not divisible by the {world_size} processes; every process takes an "
            "equal part"
        )
    steps_per_epoch = rows // batch  # the rows left over are dropped, others in each epoch
    if train.max_steps != 0 and not steps_per_epoch:
        raise UserError(
            f"train.global_batch_size={batch}: the training split has only {rows} rows; use a smaller batch"
        )
    by_samples = None if train.max_samples is None else train.max_samples // batch
    asked = [limit for limit in (train.max_steps, by_samples) if limit is not None]
    if train.epochs is not None or not asked:
        asked.append((train.epochs or 1) * steps_per_epoch)
    every = steps_between_evaluations(train, steps_per_epoch)
    return Course(steps_per_epoch, min(asked), replace(train, eval_every_steps=every, eval_every_fraction=None))
