"""Metrics of labelled new rows, encoded like a run's dataset, compared with those of one of its splits."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.data.batch import Batch, RowArrays
from app.data.shards import verify_splits
from app.data.split import BatchMaker
from app.kinds.metrics import METRICS
from app.metrics.documents import EvaluationFigures
from app.scoring.candidates import ignored_columns
from app.scoring.new_rows import arrays_of
from app.training.predictor import Predictor
from common.documents import Json, plain_object
from common.errors import UserError
from data_prep.encoding.encoder import Encoder
from data_prep.encoding.new_rows import NewRows, read_new_rows

NEW_ROWS = "new rows"  # stands in place of a split's name


@dataclass(frozen=True)
class LabelledRows:
    """Encoded rows, and per feature the share of rows with a value that the dataset does not contain."""

    arrays: RowArrays
    unknown: dict[str, float]

    @classmethod
    def read(cls, root: Path, path: Path) -> "LabelledRows":
        """Read a file of raw rows for the dataset at `root`. Raises UserError as `encode`, or for the file."""
        encoder = Encoder.load(root)
        columns = (*encoder.input_columns, *encoder.target_columns)
        return cls.encode(encoder, read_new_rows(path, encoder.shape(columns)))

    @classmethod
    def encode(cls, encoder: Encoder, rows: NewRows) -> "LabelledRows":
        """Encode rows; the dataset's rule makes their labels."""
        if not rows.numbers:
            raise UserError(f"{rows.name}: no rows; give at least one")
        ignored_columns(rows, encoder.input_columns, spare=())
        for column, content in zip(encoder.target_columns, ("labels", "sample weights"), strict=False):
            if column not in rows.columns:
                raise UserError(
                    f"{rows.name}: no column {column}, which holds the {content}; add it, or use app.recommend"
                )
        block = encoder.parse_columns(rows.columns, rows.name, rows.numbers, labelled=True)
        shares = encoder.unknown(block).mean(axis=0).tolist()
        arrays = arrays_of(encoder.encode(block))
        if arrays.weights is not None and not arrays.weights.any():
            weight = encoder.target_columns[-1]
            raise UserError(f"{rows.name}: column {weight}: all weights are 0; give a row with a weight above 0")
        return cls(arrays, dict(zip(encoder.features, shares, strict=True)))

    def compare(self, scorer: Predictor, own_split: str, corrected: bool, step: int) -> Json:
        """Return the metrics of these rows and of a split of the dataset, and the differences; a collective call.

        corrected: as in `Predictor.evaluate`; step: the checkpoint's.
        """
        rows = EvaluatedRows(self.arrays, scorer)
        new, own = scorer.evaluate(NEW_ROWS, corrected=corrected, rows=rows).figures, None
        if own_split not in scorer.manifest.splits or scorer.manifest.splits[own_split].rows:
            scorer.runtime.on_rank_0(
                lambda: verify_splits(scorer.root, scorer.manifest, [own_split], scorer.config.data)
            )
            own = scorer.evaluate(own_split, corrected=corrected).figures
        return {
            **plain_object(new),
            "step": step,
            "unknown": self.unknown,
            "own": own and {**plain_object(own), "step": step},
            "difference": own and _differences(new, own),
        }


class EvaluatedRows:
    """Rows in memory, in the form of a split that can be evaluated."""

    def __init__(self, arrays: RowArrays, scorer: Predictor) -> None:
        self.rows = len(arrays.labels)
        self._arrays, self._runtime = arrays, scorer.runtime
        self._maker = BatchMaker(scorer.root, scorer.manifest, scorer.config.data)

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield this process's parts of global batches, padded to equal size."""
        local_size = global_batch_size // self._runtime.world_size
        builder, offset = self._maker.of_size(local_size), self._runtime.rank * local_size
        for start in range(offset, self.rows + offset, global_batch_size):
            yield builder.batch(self._arrays.part(min(start, self.rows), min(start + local_size, self.rows)))


def _differences(new: EvaluationFigures, own: EvaluationFigures) -> dict[str, float]:
    """Return new minus own for each metric that both have."""
    pairs = ((name, new.figure(name), own.figure(name)) for name in METRICS)
    return {name: one - other for name, one, other in pairs if one is not None and other is not None}
