"""A program's AUC on the held-out rows by training samples and seconds, evaluations not counted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.rows import Rows, load_rows

Part = TypeVar("Part")


@dataclass(frozen=True)
class Task:
    """What each program is to do.

    Attributes:
        work: the directory that `make_rows` has filled.
        batch: rows a step.
        evaluations: number of parts of the training rows; the model is evaluated after each.
        rate: learning rate of all parameters.
        seed: of initial values and order.
        threads: of computation.
        device: cpu or cuda.
        dlrm: facebookresearch/dlrm, for its own programs only.
    """

    work: Path
    batch: int
    evaluations: int
    rate: float
    seed: int
    threads: int
    device: str = "cpu"
    dlrm: Path | None = None

    def parts(self) -> list[Rows]:
        """The training rows."""
        arrays = load_rows(self.work, "train")
        parts = [np.split(array, self.evaluations) for array in arrays]
        return [Rows(*columns) for columns in zip(*parts, strict=True)]

    def steps(self) -> int:
        """Steps between two evaluations."""
        return len(np.load(self.work / "rows/train_labels.npy", mmap_mode="r")) // self.evaluations // self.batch


class Point(NamedTuple):
    """An evaluation: samples trained on before, seconds that took, AUC."""

    samples: int
    seconds: float
    auc: float


def measure(
    task: Task, parts: Sequence[Part], train: Callable[[Part], None], predict: Callable[[Rows], NDArray[np.float32]]
) -> list[Point]:
    """Train on one part after the other; only `train` is timed."""
    from sklearn.metrics import roc_auc_score

    held_out = load_rows(task.work, "test")
    seconds, points = 0.0, []
    for number, part in enumerate(parts, 1):
        began = time.perf_counter()
        train(part)
        seconds += time.perf_counter() - began
        auc = float(roc_auc_score(held_out.labels, predict(held_out)))
        points.append(Point(number * task.steps() * task.batch, seconds, auc))
    return points


def reach(points: Sequence[Point], target: float) -> Point | None:
    """Where the AUC first reaches the target, linear between evaluations; None: it never does."""
    before = Point(0, 0.0, 0.5)
    for point in points:
        if point.auc >= target:
            share = (target - before.auc) / (point.auc - before.auc) if point.auc > before.auc else 1.0
            samples = before.samples + share * (point.samples - before.samples)
            return Point(round(samples), before.seconds + share * (point.seconds - before.seconds), target)
        before = point
    return None
