"""New rows, encoded like the rows of a run's dataset, and their logits by its model."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.data.batch import RowArrays
from app.data.split import BatchMaker
from app.scoring.candidates import ignored_columns, row_names
from app.scoring.ranking import Scored
from app.training.predictor import Predictor
from common.errors import UserError
from data_prep.encoding.encoder import EncodedBlock, Encoder, ParsedRows
from data_prep.encoding.new_rows import NewRows

log = logging.getLogger("clickwork")

PIECE_ROWS = 256  # fixed, with padding: matrix products of one shape add up each row in the same order


def parse(encoder: Encoder, rows: NewRows, id_column: str = "") -> ParsedRows:
    """Parse the columns that the model reads; log the columns it ignores, except ids and labels."""
    columns = encoder.input_columns
    if ignored := ignored_columns(rows, columns, spare=(id_column, encoder.schema.label)):
        log.info(
            "%s: the model does not read %s",
            rows.name,
            ", ".join(name or "a column without a name" for name in ignored),
        )
    return encoder.parse_columns(rows.columns, rows.name, rows.numbers)


@dataclass(frozen=True)
class RowScorer:
    """A run's model and the encoder of its dataset. A logit depends on nothing but its row, to the bit."""

    encoder: Encoder
    predictor: Predictor

    def scored(self, rows: NewRows, block: ParsedRows, id_column: str) -> Scored:
        """Return everything that a ranking of parsed rows needs."""
        encoder, order = self.encoder, _canonical_order(rows, self.encoder)
        unknown = encoder.unknown(block)
        return Scored(row_names(rows, id_column), self.logits(block, order), order, unknown, encoder.features, {})

    def logits(self, block: ParsedRows, order: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Return logits [n] of parsed rows in their own order; `order` [n]: the order in which to compute them."""
        rows, scorer = arrays_of(self.encoder.encode(block)), self.predictor
        order = np.arange(len(rows.labels)) if order is None else order
        make = BatchMaker(scorer.root, scorer.manifest, scorer.config.data).of_size(PIECE_ROWS)
        starts = range(0, len(order), PIECE_ROWS)
        pieces = (make.batch(rows.take(order[start : start + PIECE_ROWS])) for start in starts)
        logits = np.empty(len(order), np.float32)
        logits[order] = scorer.score(pieces).logits
        require_finite(logits)
        return logits


def arrays_of(block: EncodedBlock) -> RowArrays:
    """Return encoded rows in the form that batches are made from."""
    return RowArrays(block.labels.astype(np.float32), block.dense, block.sparse, block.bags, block.weights)


def _canonical_order(rows: NewRows, encoder: Encoder) -> NDArray[np.int64]:
    """Return the rows' order by their features' text, [n]; it does not depend on the order they came in."""
    columns = [list(map(str, rows.values(name))) for name in encoder.input_columns]
    order = sorted(range(len(rows.numbers)), key=lambda row: [column[row] for column in columns])
    return np.array(order, np.int64)


def require_finite(logits: NDArray[np.float32]) -> None:
    """Raise UserError for logits that cannot be ranked."""
    if bad := int(np.count_nonzero(~np.isfinite(logits))):
        raise UserError(
            f"rows: {bad:,} of {len(logits):,} logits are not finite: the model is lost, or the "
            "dense features are too large; choose another checkpoint, or correct the rows"
        )


def unknown_counts(features: Sequence[str], unknown: NDArray[np.bool_]) -> dict[str, int]:
    """Count the rows with a value that the dataset does not contain, by feature; leave out features without any."""
    counts = zip(features, unknown.sum(axis=0).tolist(), strict=True)
    return {feature: count for feature, count in counts if count}


def log_unknown(counts: dict[str, int], rows: int) -> None:
    """Log how many rows have values that the dataset does not contain."""
    if counts:
        shown = ", ".join(f"{feature} {count}" for feature, count in counts.items())
        log.warning("out of vocabulary, of %d rows: %s", rows, shown)
