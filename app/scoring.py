"""Scores of new rows by the served model: candidates, their encoding, rankings, and metrics of labelled rows."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.config.kinds import METRICS
from app.data.batch import Batch, RowArrays
from app.data.split import batch_builders, verify_splits
from app.training.predictor import Predictor
from common.command import log
from common.documents import Json, plain_object
from common.errors import UserError
from data_prep.codec.files import NewRows
from data_prep.codec.rows import ParsedRows
from data_prep.dataset.format import ShardArrays
from data_prep.encoding import Encoder


def fill_from_user(candidates: NewRows, user: NewRows) -> NewRows:
    """Return the candidates with the values that they lack, column by column, from one user's row."""
    if len(user.numbers) != 1:
        raise UserError(f"{user.name}: {len(user.numbers)} rows; the user is one row")
    rows = len(candidates.numbers)
    columns = {
        name: values * rows if isinstance(values, list) else values.take(pa.array([0] * rows, pa.int64()))
        for name, values in user.columns.items()
    } | candidates.columns
    for name, absent in candidates.absent.items():
        if name in user.columns:
            [default] = user.values(name)
            lacking = set(absent)
            columns[name] = [default if row in lacking else value for row, value in enumerate(candidates.values(name))]
    return candidates._replace(columns=columns)


def ignored_columns(candidates: NewRows, columns: Sequence[str], spare: Sequence[str]) -> list[str]:
    """Return columns that are neither among `columns`, which the model reads, nor `spare`, which others read.

    Raises UserError if one that the model reads is missing.
    """
    for name in columns:
        if name not in candidates.columns:
            raise UserError(f"{candidates.name}: no column {name}; the model reads {', '.join(columns)}")
    return [name for name in candidates.columns if name not in columns and name not in spare]


ALL = "all"  # candidates=all: every item in a log of events


class Scored(NamedTuple):
    """Candidates by name, their logits [n] and canonical order [n], and which values of `features` are unknown [n, F].

    order: candidates by their content, whatever their order in the file, so that equal scores are ranked alike.
    about: further entries for the JSON.
    """

    names: Sequence[str]
    logits: NDArray[np.float32]
    order: NDArray[np.int64]
    unknown: NDArray[np.bool_]
    features: Sequence[str]
    about: dict[str, Any]


NONE_SCORED = Scored((), np.empty(0, np.float32), np.empty(0, np.int64), np.zeros((0, 0), np.bool_), (), {})


class Ranked(NamedTuple):
    """One candidate: its rank from 1, name and click probability, and the features whose values are unknown."""

    rank: int
    candidate: str
    probability: float
    logit: float
    out_of_vocabulary: list[str]


class RankedNumber(NamedTuple):
    """One candidate, ranked by a predicted number."""

    rank: int
    candidate: str
    prediction: float
    out_of_vocabulary: list[str]


Ranking = Sequence[Ranked] | Sequence[RankedNumber]


def rank(scored: Scored, has_clicks: bool, correction: float) -> Ranking:
    """Return the candidates from the best to the worst; equal scores come in the candidates' canonical order.

    has_clicks: whether these are logits of clicks, not predicted numbers. correction: offset of logits of clicks.
    """
    names, logits, order, unknown, features, _ = scored
    best = order[np.argsort(-logits[order], kind="stable")].tolist()
    unknown_names = [[name for name, is_unknown in zip(features, row, strict=True) if is_unknown] for row in unknown]
    numbered = list(enumerate(best, start=1))
    if not has_clicks:
        return [RankedNumber(number, names[i], float(logits[i]), unknown_names[i]) for number, i in numbered]
    shown = logits.astype(np.float64) + correction
    clicks = probabilities(shown)
    return [Ranked(number, names[i], float(clicks[i]), float(shown[i]), unknown_names[i]) for number, i in numbered]


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of clicks [n] for these logits."""
    with np.errstate(over="ignore"):  # exp is infinite for logits below -709; their probability is 0
        clicks: NDArray[np.float64] = 1 / (1 + np.exp(-logits))
    return clicks


def to_table(ranking: Ranking) -> str:
    """Return aligned columns for a terminal."""
    # The third column is a probability, or a predicted number.
    rows = [("rank", "candidate", _header(ranking)[2], "out of vocabulary")]
    rows += [(str(entry[0]), entry[1], f"{entry[2]:.6f}", " ".join(entry.out_of_vocabulary)) for entry in ranking]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _header(ranking: Ranking) -> tuple[str, ...]:
    """Return the names of a ranking's fields; those of clicks, if there is no candidate that tells the kind."""
    return ranking[0]._fields if ranking else Ranked._fields


def to_json(ranking: Ranking, about: dict[str, Any]) -> str:
    """Return the ranking with a description of it, as JSON."""
    return json.dumps({**about, "ranking": [candidate._asdict() for candidate in ranking]}, indent=1) + "\n"


def to_csv(ranking: Ranking) -> str:
    """Return one line per candidate; spaces join the unknown features."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_header(ranking))
    for candidate in ranking:
        writer.writerow([*candidate[:-1], " ".join(candidate.out_of_vocabulary)])
    return text.getvalue()


PIECE_ROWS = 256  # rows of a batch, padded: matrix products of one shape add up each row in the same order


def parse(encoder: Encoder, rows: NewRows, id_column: str = "") -> ParsedRows:
    """Parse the columns that the model reads; log the columns it ignores, except ids and labels."""
    columns = encoder.input_columns
    if ignored := ignored_columns(rows, columns, spare=(id_column, encoder.target_columns[0])):
        names = ", ".join(name or "a column without a name" for name in ignored)
        log.info("%s: the model does not read %s", rows.name, names)
    return encoder.parse_columns(rows.columns, rows.name, rows.numbers)


@dataclass(frozen=True)
class RowScorer:
    """A run's model and the encoder of its dataset. A logit depends on nothing but its row, to the bit."""

    encoder: Encoder
    predictor: Predictor

    def scored(self, rows: NewRows, block: ParsedRows, id_column: str) -> Scored:
        """Return scores of parsed rows, named by `id_column` or else numbered, with their order and unknown values."""
        # Equal scores are ranked by their features' text, which does not depend on the order in the file.
        columns = [list(map(str, rows.values(name))) for name in self.encoder.input_columns]
        numbers = range(len(rows.numbers))
        order = np.array(sorted(numbers, key=lambda row: [column[row] for column in columns]), np.int64)
        names = rows.texts(id_column) if id_column in rows.columns else [str(row + 1) for row in numbers]
        unknown = self.encoder.unknown(block)
        return Scored(names, self.logits(block, order), order, unknown, self.encoder.features, {})

    def logits(self, block: ParsedRows, order: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Return logits [n] of parsed rows in their own order; `order` [n]: the order in which to compute them."""
        rows, scorer = to_row_arrays(self.encoder.encode(block)), self.predictor
        order = np.arange(len(rows.labels)) if order is None else order
        make = batch_builders(scorer.root, scorer.manifest, scorer.config.data)(PIECE_ROWS)
        starts = range(0, len(order), PIECE_ROWS)
        pieces = (make.batch(rows.take(order[start : start + PIECE_ROWS])) for start in starts)
        logits = np.empty(len(order), np.float32)
        logits[order] = scorer.score(pieces).logits
        require_finite(logits)
        return logits


def to_row_arrays(block: ShardArrays) -> RowArrays:
    """Return encoded rows in the form that batches are made from."""
    return RowArrays(block.labels.astype(np.float32), block.dense, block.sparse, block.bags, block.weights)


def require_finite(logits: NDArray[np.float32]) -> None:
    """Raise UserError if logits of new rows are NaN or infinite, so that they cannot be ranked."""
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


NEW_ROWS = "new rows"  # stands in place of a split's name


def labelled_rows(encoder: Encoder, rows: NewRows) -> tuple[RowArrays, dict[str, float]]:
    """Return encoded rows, with labels by the dataset's rule, and the share of unknown values of each feature.

    Raises UserError for missing rows, columns or weights.
    """
    if not rows.numbers:
        raise UserError(f"{rows.name}: no rows; give at least one")
    ignored_columns(rows, encoder.input_columns, spare=())
    # Only a dataset with sample weights has a second column.
    for column, content in zip(encoder.target_columns, ("labels", "sample weights"), strict=False):
        if column not in rows.columns:
            raise UserError(f"{rows.name}: no column {column}, which holds the {content}; add it, or use app.recommend")
    block = encoder.parse_columns(rows.columns, rows.name, rows.numbers, labelled=True)
    shares = encoder.unknown(block).mean(axis=0).tolist()
    arrays = to_row_arrays(encoder.encode(block))
    if arrays.weights is not None and not arrays.weights.any():
        weight = encoder.target_columns[-1]
        raise UserError(f"{rows.name}: column {weight}: all weights are 0; give a row with a weight above 0")
    return arrays, dict(zip(encoder.features, shares, strict=True))


def compare_rows(
    scorer: Predictor, rows: RowArrays, unknown: dict[str, float], own_split: str, corrected: bool, step: int
) -> Json:
    """Return the metrics of labelled rows and of a split of the dataset, and the differences; a collective call.

    corrected: as in `Predictor.evaluate`; step: the checkpoint's.
    """
    new, own = scorer.evaluate(NEW_ROWS, corrected=corrected, rows=EvaluatedRows(rows, scorer)).figures, None
    # An unknown split is an error, but an empty one merely has nothing to compare with.
    if own_split not in scorer.manifest.splits or scorer.manifest.splits[own_split].rows:
        scorer.runtime.on_rank_0(lambda: verify_splits(scorer.root, scorer.manifest, [own_split], scorer.config.data))
        own = scorer.evaluate(own_split, corrected=corrected).figures
    differences = {}
    for name in METRICS:
        of_rows, of_split = new.figure(name), own.figure(name) if own else None
        if of_rows is not None and of_split is not None:
            differences[name] = of_rows - of_split
    return {
        **plain_object(new),
        "step": step,
        "unknown": unknown,
        "own": own and {**plain_object(own), "step": step},
        "difference": own and differences,
    }


class EvaluatedRows:
    """Rows in memory, in the form of a split that can be evaluated."""

    def __init__(self, arrays: RowArrays, scorer: Predictor) -> None:
        self.rows = len(arrays.labels)
        self._arrays, self._runtime = arrays, scorer.runtime
        self._make_builder = batch_builders(scorer.root, scorer.manifest, scorer.config.data)

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield this process's parts of global batches, padded to equal size."""
        local_size = global_batch_size // self._runtime.world_size
        builder, offset = self._make_builder(local_size), self._runtime.rank * local_size
        # All processes yield equally many batches, even empty ones, since to score them is a collective call.
        for start in range(offset, self.rows + offset, global_batch_size):
            yield builder.batch(self._arrays.part(min(start, self.rows), min(start + local_size, self.rows)))
