"""Comparison of a replay, bit for bit, with the checkpoints that the run left."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from app.checkpoint.model_state import local_tensors, read_tensors, stage, tensors_of
from app.metrics.documents import Curves
from app.metrics.timing import StepTimer
from app.optimizer.build import set_step
from app.record.directory import RunDirectory
from app.training.checkpointer import Checkpointer
from app.training.recording import scores
from app.training.recording.recorder import Recorder
from app.training.session import Session
from app.training.state import RunState
from common.documents import Json

NEAR_ZERO = 1.0  # differences of parameters are relative to their size, but at least to this
TABLES = ".embedding_bags."  # part of the names of tables' tensors


class BitwiseDifference(NamedTuple):
    """The index of the first element (row-major) whose bits differ, and the largest difference over max(floor, |x|)."""

    first: tuple[int, ...]
    largest: float


def bitwise_difference(
    recorded: NDArray[np.generic], replayed: NDArray[np.generic], floor: float
) -> BitwiseDifference | None:
    """Return where arrays differ; None if all bits are equal.

    A NaN equals the same NaN and is infinitely far from everything else.
    """
    if recorded.shape != replayed.shape:
        return BitwiseDifference((0,) * recorded.ndim, float("inf"))
    width = f"u{recorded.dtype.itemsize}"
    bits = np.flatnonzero(np.ascontiguousarray(recorded).view(width) != np.ascontiguousarray(replayed).view(width))
    if not len(bits):
        return None
    before, now = recorded.ravel()[bits].astype(np.float64), replayed.ravel()[bits].astype(np.float64)
    with np.errstate(invalid="ignore"):
        relative = np.abs(before - now) / np.maximum(floor, np.abs(before))
    largest = float("inf") if np.isnan(relative).any() else float(relative.max())
    first = tuple(int(index) for index in np.unravel_index(bits[0], recorded.shape))
    return BitwiseDifference(first, largest)


def merged_difference(one: BitwiseDifference | None, other: BitwiseDifference | None) -> BitwiseDifference | None:
    """Merge the differences of two parts of an array: the earlier index, the larger difference."""
    if one is None or other is None:
        return one or other
    return BitwiseDifference(min(one.first, other.first), max(one.largest, other.largest))


class ReplayDirectory(RunDirectory):
    """A replay's directory; it remembers the curves of one of the replay's evaluations."""

    is_tracked = False

    def __init__(self, path: Path, rank: int, step: int | None) -> None:
        """step: of the evaluation whose curves are kept; None: keep none."""
        super().__init__(path, rank)
        self._step = step
        self.kept_curves: Curves | None = None

    def curves(self, compute: Callable[[], Curves]) -> Curves | None:
        content = super().curves(compute)
        if content is not None and content.step == self._step:
            self.kept_curves = content
        return content


class ReplayComparison(Checkpointer):
    """A replay's checkpointer: it compares instead of saving, wherever the run left a checkpoint."""

    def __init__(
        self,
        session: Session,
        recorder: Recorder,
        timer: StepTimer,
        *,
        checkpoints: dict[int, Path],
        scored: dict[str, int],
    ) -> None:
        """checkpoints: the run's, by step. scored: step of the scores it kept, by split. A collective call."""
        super().__init__(session, recorder, timer)
        self._checkpoints, self._scored = checkpoints, scored
        self.tensors: dict[int, dict[str, BitwiseDifference]] = {}  # tensors that differ, by step and name

    def due(self, step: int) -> bool:
        return step in self._checkpoints or step in self._scored.values()

    def save(self, state: RunState, best: bool = False) -> None:
        if state.step in self._checkpoints:
            self.tensors[state.step] = self._compare(self._checkpoints[state.step])
        for split in [split for split, step in self._scored.items() if step == state.step]:
            with self._timer.apart("eval"):
                predictor = self._session.predictor
                scores.keep(predictor, predictor.evaluate(split), self._recorder.directory.path, state.step)
                set_step(self._session.optimizer, state.updates)  # FBGEMM's optimizers counted the forward

    def keep_best(self, state: RunState) -> None:
        pass

    def _compare(self, path: Path) -> dict[str, BitwiseDifference]:
        """Return the tensors that differ from a checkpoint's, tables first; a collective call."""
        live = stage(tensors_of(self._session.model, self._session.optimizer))
        recorded = stage(live)
        read_tensors(path, recorded)
        differences: dict[str, BitwiseDifference] = {}
        for before, now in zip(local_tensors(recorded), local_tensors(live), strict=True):
            difference = bitwise_difference(_array(before.values), _array(now.values), NEAR_ZERO)
            if difference is not None:
                index = tuple(a + b for a, b in zip(before.offsets, difference.first, strict=True))
                differences[before.path] = (
                    merged_difference(differences.get(before.path), BitwiseDifference(index, difference.largest))
                    or difference
                )
        of_ranks: list[dict[str, BitwiseDifference]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(of_ranks, differences)
        largest: dict[str, BitwiseDifference | None] = {}
        for of_rank in of_ranks:
            for name, difference in of_rank.items():
                largest[name] = merged_difference(largest.get(name), difference)
        return {_short(name): largest[name] for name in sorted(largest, key=_order) if largest[name] is not None}  # type: ignore

    def report(self, losses: BitwiseDifference | None) -> Json:
        """Return the comparison for the JSON; steps count from 1."""
        worst = [one.largest for tensors in self.tensors.values() for one in tensors.values()]
        differing = {step: tensors for step, tensors in self.tensors.items() if tensors}
        first = min(differing, default=None)
        tensors = {} if first is None else differing[first]
        return {
            "losses": plain(losses, lambda index: {"first_step": index[0] + 1}),
            "tensors_at_step": first,
            "tensors": {name: plain(one, lambda index: {"first_element": index}) for name, one in tensors.items()},
            "largest_difference": max([0.0, losses.largest if losses else 0.0, *worst]),
        }


def _order(name: str) -> tuple[bool, bool, str]:
    """Return a sort key: the model's tensors before the optimizer's, tables before dense ones."""
    return not name.startswith("model."), TABLES not in name, name


def _short(name: str) -> str:
    """Shorten a tensor's name in a checkpoint to the one that people know."""
    kind, _, name = name.partition(".")
    of_table = name.rpartition(TABLES)[2] if TABLES in name else ""
    if kind == "model":
        return of_table.removesuffix(".weight") or name
    return "optimizer's " + (of_table.partition(".weight.")[2] or name.removeprefix("state.dense."))


def _array(tensor: Tensor) -> NDArray[Any]:
    """Convert to NumPy; bfloat16, which NumPy lacks, becomes float32, value for value."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def plain(difference: BitwiseDifference | None, describe: Callable[[tuple[int, ...]], Json]) -> Json | None:
    """Return a difference for the JSON; `describe` names its first index."""
    return None if difference is None else {**describe(difference.first), "largest": difference.largest}
