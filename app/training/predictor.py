"""A model that scores rows: whole splits with their metrics, or a caller's batches."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.distributed import DistributedModelParallel

from app.checkpoint.model_state import load_tensors
from app.config import AppConfig, Precision
from app.config.train import part_size, samples_of
from app.data.batch import Batch, copied_ahead
from app.data.split import EvaluatedSplit, RowSplits, Split, Splits
from app.metrics.clicks import (
    all_rows_sums,
    click_metrics,
    click_sums,
    histogram_metrics,
    of_all_rows,
    score_counts,
)
from app.metrics.curves import MAX_SAMPLES
from app.metrics.documents import EvaluationFigures
from app.metrics.numbers import number_metrics
from app.metrics.users import group_metrics
from app.runtime.platform import Runtime, ScalarT
from app.training.build import WITHOUT_STATE, sharded_model
from app.training.labels import task_of
from app.training.micro_batches import Draw, MicroBatches
from common.documents import convert, decode, encode
from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.sampling import correction, kept_share

log = logging.getLogger("clickwork")

Interrupted = Callable[[int], bool]


class Scores(NamedTuple):
    """Logits and labels of samples, [n] float32, and the further inputs of group metrics.

    groups: ids [n] int32 of the model's group_feature, or of eval.group_by; empty without either. rows:
        `Batch.row_keys`, with eval.group_by only.
    tasks: logits and labels of each further label that the model learns.
    weights: sample weights [n] float32; None if the dataset has none.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    groups: NDArray[np.int32]
    rows: NDArray[np.int64]
    tasks: list[tuple[NDArray[np.float32], NDArray[np.float32]]]
    weights: NDArray[np.float32] | None = None


class Evaluation(NamedTuple):
    """A split's metrics, with its name and number of samples, the same on all processes.

    logits, labels: [n] float32 on rank 0 in the order of the split's rows, empty elsewhere; a sample of them if the AUC
        is from a histogram; empty if labels are numbers.
    """

    figures: EvaluationFigures
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]


class EvaluationInterrupted(Exception):
    """Raised when the run is asked to stop during an evaluation, which a resumed run begins again."""


def _figures(split: str, samples: int, metrics: Mapping[str, object]) -> EvaluationFigures:
    return convert({"split": split, "samples": samples, **metrics}, EvaluationFigures)


@dataclass
class Predictor:
    """A model, sharded or not, that scores a dataset's rows on this process's device."""

    config: AppConfig
    runtime: Runtime
    root: Path  # the dataset's directory
    manifest: Manifest
    model: Any  # DistributedModelParallel, or a DLRM that each process holds whole
    _splits: dict[str, Split] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.config.model.mixes_samples:
            log.warning(
                "model.mixes_samples=true: a sample's logit depends on the other rows of its batch, so every "
                "metric depends on eval.global_batch_size (%d) and on the number of processes (%d)",
                self.config.eval.global_batch_size,
                self.runtime.world_size,
            )

    def split(self, name: str) -> Split:
        """Return a split of the dataset, which is opened once per process."""
        if name not in self._splits:
            self._splits[name] = self._dataset.split(name, self.runtime.rank, self.runtime.world_size)
        return self._splits[name]

    @cached_property
    def _dataset(self) -> Splits:
        parts = self.config.model.parts
        if parts is not None:
            return parts.open_splits(self.root, self.manifest, self.config)
        return RowSplits(self.root, self.manifest, self.config.data, self.config.train)

    @cached_property
    def micro_batches(self) -> MicroBatches | None:
        """Arithmetic of train.deterministic=layout; None otherwise, and where each process has the whole model."""
        size = self.config.train.micro_batch
        if size is None or not isinstance(self.model, DistributedModelParallel):
            return None
        return MicroBatches(self.model, size, self.runtime)

    def samples(self, steps: int) -> int:
        """Return the number of samples in the run's first steps."""
        train = self.config.train
        return samples_of(train, 0 if train.drop_last else self.split("train").rows, steps)

    def split_rows(self) -> dict[str, int]:
        """Return the rows of each split; for a dataset of events, its samples."""
        windows = {name: self.split(name).rows for name in self.manifest.kind.windows}
        return windows or {name: split.rows for name, split in self.manifest.splits.items()}

    def on_device(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches on this process's device."""
        device = self.runtime.device
        return batches if device.type == "cpu" else copied_ahead(batches, device)

    def autocast(self, cached: bool = True) -> torch.autocast:
        """Return a context with the dense layers' precision. cached: cast each weight once, not at every use."""
        bf16 = self.config.runtime.precision is Precision.bf16
        return torch.autocast(self.runtime.device.type, torch.bfloat16, bf16, cached)

    def forward(self, batch: Batch, draw: Draw = lambda first_row, num_valid: None) -> Tensor:
        """Return logits on the device: float32, shaped as the labels; dense layers use the configured precision.

        draw: begins a micro-batch in training.
        """
        with self.autocast():
            if self.micro_batches is not None:
                return self.micro_batches.forward(batch, draw)
            logits: Tensor = self.model(*batch.inputs)
            return logits.flatten() if batch.labels.ndim == 1 else logits

    def score(self, batches: Iterator[Batch], interrupted: Interrupted = lambda batches_done: False) -> Scores:
        """Return the scores of these batches' valid samples, on the CPU.

        Raises:
            EvaluationInterrupted: `interrupted`, called with the number of batches done, returned true.
        """
        was_training = self.model.training
        self.model.eval()
        logits, labels, groups = [torch.empty(0)], [torch.empty(0)], [torch.empty(0, dtype=torch.int32)]
        rows, weights = [np.empty(0, np.int64)], [torch.empty(0)]
        column = self.config.model.kind.group_feature or self.config.eval.group_by
        try:
            with torch.no_grad():
                for number, batch in enumerate(self.on_device(batches)):
                    if interrupted(number):
                        raise EvaluationInterrupted
                    logits.append(self.forward(batch)[: batch.num_valid].cpu())
                    labels.append(batch.labels[: batch.num_valid].cpu())
                    if batch.weights is not None:
                        weights.append(batch.weights[: batch.num_valid].cpu())
                    if column is not None:
                        groups.append(batch.sparse_features[column].values()[: batch.num_valid].cpu())
                    if self.config.eval.group_by is not None:
                        rows.append(batch.row_keys()[: batch.num_valid])
        finally:
            self.model.train(was_training)
        scores, truth, ids = (torch.cat(parts).numpy() for parts in (logits, labels, groups))
        if scores.ndim == 1:
            of_rows = torch.cat(weights).numpy() if self.manifest.weight else None
            return Scores(scores, truth, ids, np.concatenate(rows), [], of_rows)
        return Scores(
            scores[:, 0], truth[:, 0], ids, np.concatenate(rows), [*zip(scores.T[1:], truth.T[1:], strict=True)]
        )

    def eval_batch_size(self, rows: int) -> int:
        """Return the samples of an evaluation step over all processes, for a split with this many rows."""
        samples = min(self.config.eval.global_batch_size, rows)
        processes = self.runtime.world_size
        return part_size(max(1, samples), processes, self.config.train.micro_batch) * processes

    def evaluate(
        self,
        name: str,
        interrupted: Interrupted = lambda batches_done: False,
        corrected: bool = False,
        rows: EvaluatedSplit | None = None,
    ) -> Evaluation:
        """Return the metrics of a whole split, all processes' samples pooled; a collective call.

        rows: rows to evaluate under that name in place of a split of the dataset; sampling left none of
            them out.
        corrected: take metrics of probabilities that are corrected for sampling and loss.class_weights, over all
            rows; logits stay as they are.

        Raises as `score`, and UserError for logits that are not finite.

        Rank 0 alone collects and sorts the scores; above eval.exact_rows, processes add up histograms instead.
        """
        split, runtime = rows or self.split(name), self.runtime
        batches = split.eval_batches(self.eval_batch_size(split.rows))
        logits, labels, groups, row_keys, tasks, weights = self.score(batches, interrupted)
        self._require_finite([logits, *(scores for scores, _ in tasks)], split.rows, name)
        pooled = partial(self._in_order, rows=split.rows)
        if not task_of(self.manifest).has_clicks:
            preds, truth, *of_rows = self._for_sums(pooled, logits, labels, weights)
            figures = number_metrics(preds, truth, self._total, *of_rows)
            return Evaluation(_figures(name, split.rows, figures), logits[:0], labels[:0])
        kept, class_weights, sums_of_all = kept_share(self.manifest), self.config.loss.class_weights, np.empty(0)
        if rows is not None:  # sampling left none of them out
            logits, kept = logits + np.float32(correction(kept, class_weights) if corrected else 0), 1.0
        elif kept and (kept != 1 or class_weights):
            summed = self._for_sums(pooled, logits, labels, weights)
            sums_of_all = self._total(all_rows_sums(*summed, kept=kept, class_weights=class_weights))
        if split.rows > self.config.eval.exact_rows:
            summed = self._for_sums(pooled, logits, labels, weights)
            sums = self._total(click_sums(*summed))
            if weights is None:
                binned = histogram_metrics(runtime.total(score_counts(logits, labels)), sums)
            else:
                binned = histogram_metrics(self._total(score_counts(*summed)), sums)
            binned = of_all_rows(binned, sums_of_all, corrected) if len(sums_of_all) else binned
            stride = -(-split.rows // MAX_SAMPLES)
            logits, labels = summed[0][::stride], summed[1][::stride]
            if self.micro_batches is None:
                logits, labels = runtime.to_rank_0(logits), runtime.to_rank_0(labels)
            return Evaluation(_figures(name, split.rows, binned), logits, labels)
        logits, labels, groups, row_keys = pooled(logits), pooled(labels), pooled(groups), pooled(row_keys)
        weights = None if weights is None else pooled(weights)
        others = [(pooled(scores), pooled(truth)) for scores, truth in tasks]

        def measured() -> str:
            grouped: dict[str, float | int | None] = {}
            parts, names = self.config.model.parts, list[str]()
            if self.config.eval.group_by is not None:
                grouped = group_metrics(logits, labels, groups, row_keys)
            elif parts is not None:
                grouped, names = {**parts.group_metrics(logits, labels, groups)}, parts.tasks(self.config)
            of_kept = click_metrics(logits, labels, 1 / kept if corrected else 1.0, weights)
            figures = of_all_rows(of_kept, sums_of_all, corrected) if len(sums_of_all) else of_kept
            aucs = {f"auc_{name}": click_metrics(*task)["auc"] for name, task in zip(names, others, strict=False)}
            return encode(_figures(name, split.rows, {**figures, **grouped, **aucs}))

        text = runtime.on_rank_0(measured)
        return Evaluation(decode(text, EvaluationFigures), logits, labels)

    def _in_order(self, values: NDArray[ScalarT], rows: int) -> NDArray[ScalarT]:
        """Return all processes' values of a split on rank 0, in the order of its rows; empty elsewhere."""
        joined = self.runtime.to_rank_0(values)
        if not len(joined) or self.runtime.world_size == 1 or self.manifest.kind.windows:
            return joined
        return joined[places_of_rows(rows, self.eval_batch_size(rows), self.runtime.world_size)]

    def _for_sums(
        self, pooled: Callable[[NDArray[np.float32]], NDArray[np.float32]], *of_rows: NDArray[np.float32] | None
    ) -> list[NDArray[np.float32]]:
        """Return the scores that this process adds: its own; with train.deterministic=layout, rank 0 adds all."""
        given = [values for values in of_rows if values is not None]
        return given if self.micro_batches is None else [pooled(values) for values in given]

    def _total(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of the processes' sums, on all of them."""
        of_ranks = self.runtime.gather(sums)
        return of_ranks[0] if self.micro_batches is not None else np.sum(of_ranks, axis=0)

    def _require_finite(self, scores: list[NDArray[np.float32]], rows: int, name: str) -> None:
        """Raise UserError on all processes if any of them has logits that are not finite."""
        bad = np.logical_or.reduce([~np.isfinite(logits) for logits in scores])
        if count := int(self.runtime.total(np.array([np.count_nonzero(bad)]))[0]):
            raise UserError(
                f"split {name}: {count:,} of {rows:,} logits are not finite, and no metric is defined for "
                "them: lower optimizer.lr and train again, or choose an earlier checkpoint"
            )


def load(checkpoint: Path, config: AppConfig, runtime: Runtime, root: Path, manifest: Manifest) -> Predictor:
    """Return a checkpoint's model, sharded as configured, without an optimizer or its state; a collective call.

    Raises:
        UserError: the checkpoint or the dataset does not fit the configuration.
    """
    model, _ = sharded_model(config, runtime, root, manifest, WITHOUT_STATE, initial=False)
    load_tensors(checkpoint, model, optimizer=None)
    return Predictor(config, runtime, root, manifest, model)


def places_of_rows(rows: int, batch_size: int, world_size: int) -> NDArray[np.int64]:
    """Return the place of each row of a split [rows] among joined scores.

    The scores of one process follow those of another, and each process scores an equal part of each batch.
    """
    numbers, local_size = np.arange(rows), batch_size // world_size
    batches, last_rows = divmod(rows, batch_size)
    last_parts = np.clip(last_rows - local_size * np.arange(world_size), 0, local_size)
    starts = np.cumsum([0, *(batches * local_size + last_parts)])
    batch, place = np.divmod(numbers, batch_size)
    rank, local_place = np.divmod(place, local_size)
    places: NDArray[np.int64] = starts[rank] + batch * local_size + local_place
    return places
