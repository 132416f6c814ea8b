"""A run's model that scores tables of any library."""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, get_args

from clickwork.errors import convert_errors
from common.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from app.config.app_config import AppConfig
    from app.runtime.platform import Runtime
    from app.scoring import Ranking, RowScorer
    from app.training.checkpointer import TrainedRun
    from data_prep.codec.files import NewRows

PIECE_ROWS = 1 << 16  # rows of a table that are parsed at once; app.scoring scores PIECE_ROWS of its own at once
REMEDY = "give a pandas, polars or Arrow table, record batches, or dicts"


class ArrowStream(Protocol):
    """A table of any library with Arrow's C interface: pandas (2.2 or newer), polars, pyarrow, and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# One dict is one row; an iterable has dicts, or tables such as record batches.
TableLike: TypeAlias = ArrowStream | Mapping[str, Any] | Iterable[Any]


def split_table(table: TableLike, name: str = "table", size: int = PIECE_ROWS) -> "Iterator[NewRows]":
    """Yield the rows of a table in pieces of at most `size`; an iterable is asked for each table when it is needed.

    name: of the table in errors, in which its rows are numbered from 1.
    """
    from data_prep.codec.convert import plain_value, without_nan
    from data_prep.codec.files import NewRows, require_distinct, rows_of_objects

    first = 1
    for piece in _split_pieces(table, name, size):
        if isinstance(piece, list):
            for number, row in enumerate(piece, first):
                if not isinstance(row, Mapping):
                    raise UserError(f"{name}: row {number}: {type(row).__name__}, not a dict; {REMEDY}")
            plain = ({str(key): plain_value(value) for key, value in row.items()} for row in piece)
            rows = rows_of_objects(name, dict(enumerate(plain, first)))
        else:
            require_distinct(name, piece.schema.names, None)
            columns = dict(zip(piece.schema.names, map(without_nan, piece.columns), strict=True))
            rows = NewRows(name, columns, range(first, first + piece.num_rows))
        first += len(rows.numbers)
        yield rows


def whole_table(table: TableLike, name: str) -> "NewRows":
    """Return all rows of a table that fits in memory. Raises UserError as `split_table`, or for several tables."""
    import pyarrow as pa

    from data_prep.codec.files import NewRows

    if hasattr(table, "__arrow_c_stream__"):
        with _convert_arrow_errors(name):
            # One chunk makes one piece below.
            table = pa.table(table).combine_chunks()
    pieces = [*split_table(table, name, sys.maxsize)] or [NewRows(name, {}, ())]
    if len(pieces) > 1:
        raise UserError(f"{name}: several tables; give one")
    return pieces[0]


def _split_pieces(table: Any, name: str, size: int) -> Iterator[Any]:
    """Yield a table in pieces of at most `size` rows: lists of dicts, or Arrow's record batches."""
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        with _convert_arrow_errors(name):
            for batch in pa.RecordBatchReader.from_stream(table):
                yield from (batch.slice(start, size) for start in range(0, batch.num_rows, size))
    elif isinstance(table, Mapping):
        yield [table]
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes):
        items = iter(table)
        for item in items:
            if isinstance(item, Mapping):
                yield [item, *islice(items, size - 1)]
            elif hasattr(item, "__arrow_c_stream__"):
                yield from _split_pieces(item, name, size)
            else:
                raise UserError(f"{name}: {type(item).__name__} in it is not a row; {REMEDY}")
    else:
        raise UserError(f"{name}: {type(table).__name__} is not a table; {REMEDY}")


@contextmanager
def _convert_arrow_errors(name: str) -> Iterator[None]:
    """Context in which a library's failure to give its table to Arrow is a UserError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, TypeError, ValueError) as error:  # pandas', of sparse columns, and two of one name
        raise UserError(f"{name}: not readable through Arrow's interface ({str(error).splitlines()[0]})") from error


# TorchRec's modules keep state between calls, and torch's settings are of the whole process.
_TORCH = threading.RLock()


class Predictor:
    """A run's model with the encoder of its dataset. Several threads may call one predictor.

    A prediction depends on its row alone: to the bit, it is that of `python -m app.recommend`, whatever the number and
    order of the rows. Values that the run's dataset does not contain are scored as its unknown value, and a warning of
    the logger `clickwork` counts them.
    """

    _name = ""  # the run and its step, for `repr`; `load` sets it

    def __init__(self, scorer: "RowScorer", trained: "AppConfig", runtime: "Runtime", correction: float) -> None:
        from app.training.predictor import task_of

        self._scorer, self._trained, self._runtime, self._correction = scorer, trained, runtime, correction
        self._has_clicks = task_of(scorer.predictor.manifest).has_clicks

    def __repr__(self) -> str:
        output = "probabilities" if self._has_clicks else "numbers"
        return f"Predictor({self._name}: {output} from {', '.join(self.columns)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return self._scorer.encoder.input_columns

    @convert_errors()
    def predict(self, table: TableLike, logits: bool = False) -> "NDArray[np.float32]":
        """Score rows; return float32 [rows]: probabilities of clicks, or numbers if the labels are numbers.

        Args:
            table: a pandas, polars or Arrow table; a dict, which is one row; or an iterable of dicts or tables. A
                `pyarrow.RecordBatchReader` or an iterable of record batches is read and scored batch by batch, so that
                memory holds one batch and the result.
            logits: return logits instead of probabilities.

        Raises:
            Error: a column is missing, or a value is invalid.
        """
        import numpy as np

        from app.scoring import log_unknown, parse, probabilities, unknown_counts

        encoder, parts, unknown = self._scorer.encoder, [np.empty(0, np.float32)], Counter[str]()
        for rows in split_table(table):
            block = parse(encoder, rows)
            unknown.update(unknown_counts(encoder.features, encoder.unknown(block)))
            # The lock covers torch alone, so other threads can parse their rows meanwhile.
            with run_arithmetic(self._trained, self._runtime):
                parts.append(self._scorer.logits(block))
        scores = np.concatenate(parts)
        log_unknown(unknown, len(scores))
        if not self._has_clicks:
            return scores
        # The sum is computed in float64, so that it is rounded once.
        shown = scores.astype(np.float64) + self._correction
        return (shown if logits else probabilities(shown)).astype(np.float32)

    @convert_errors()
    def rank(
        self, user: TableLike | None, candidates: TableLike, top_k: int | None = 10, id_column: str = "id"
    ) -> "Ranking":
        """Rank candidates for a user, best first, as `python -m app.recommend` does.

        Args:
            user: one row with the columns that the candidates lack; None if they lack none.
            candidates: a table or dicts.
            top_k: number of candidates to return; None: all.
            id_column: names the candidates, if there is such a column; else they are numbered from 1.

        Returns:
            Named tuples with rank, candidate, probability, logit and out_of_vocabulary, the features with values that
            the dataset does not contain; if labels are numbers, prediction replaces probability and logit.

        Raises:
            Error: as `predict`, or the user is not one row.
        """
        from app import scoring
        from app.scoring import fill_from_user, parse

        rows = whole_table(candidates, "candidates")
        if not rows.numbers:
            return []
        if user is not None:
            rows = fill_from_user(rows, whole_table(user, "user"))
        block = parse(self._scorer.encoder, rows, id_column)
        with run_arithmetic(self._trained, self._runtime):
            scored = self._scorer.scored(rows, block, id_column)
        return scoring.rank(scored, self._has_clicks, self._correction)[:top_k]


@convert_errors()
def load(
    run: str | Path,
    checkpoint: str | int | Path | None = None,
    *,
    data: str | Path | None = None,
    platform: str = "auto",
    correct_sampling: bool = False,
) -> Predictor:
    """Load a run's model, to score new rows.

    Args:
        run: the run's directory.
        checkpoint: "best", "last" (or "latest"), a step, or a path; None: the best where the run keeps one, else the
            last.
        data: the dataset's directory, if it has moved.
        platform: "cpu", "cuda", "rocm", or "auto", which takes a GPU if there is one.
        correct_sampling: correct probabilities for sampling and class weights, as with `correct_sampling=true`.

    Raises:
        Error: there is no such run, checkpoint or dataset, or the model does not score rows.
    """
    trained = trained_config(run, data, platform)
    with open_run(run, trained, checkpoint) as (opened, runtime):
        scorer, correction = row_scorer(trained, opened, runtime), opened.correction(correct_sampling)
        predictor = Predictor(scorer, trained, runtime, correction)
        predictor._name = f"{str(run)!r}, step {opened.state.step:,}"
        return predictor


def trained_config(run: str | Path, data: str | Path | None, platform: str) -> "AppConfig":
    """Return a run's configuration for scoring rows, which its model must be able to do."""
    from app.config.app_config import validate
    from app.config.model import require_own_scores
    from app.config.train import Platform, RuntimeConfig
    from app.training import checkpointer

    if platform not in get_args(Platform):
        raise UserError(f"platform={platform}: must be one of {', '.join(get_args(Platform))}")
    runtime = RuntimeConfig(platform=cast("Platform", platform))
    trained = checkpointer.trained_config(Path(run), runtime, None if data is None else str(data))
    if trained.model.parts is not None:
        raise UserError(
            f"run={run}: a model of {trained.model.kind.name.upper()}, which scores no single rows; use "
            f"python -m app.recommend run={run}"
        )
    validate(trained)
    require_own_scores(trained.model, "scoring single rows")
    return trained


@contextmanager
def open_run(
    run: str | Path, trained: "AppConfig", checkpoint: str | int | Path | None
) -> "Iterator[tuple[TrainedRun, Runtime]]":
    """Context with a run's checkpoint, and this process as its runtime in the arithmetic of the run."""
    import torch

    from app.runtime import environment, platform
    from app.training import checkpointer

    choice = None if checkpoint is None else str(checkpoint)
    # Starting a runtime seeds torch and changes its settings, which belong to the caller.
    with _TORCH, _restore_settings(), torch.random.fork_rng(devices=[]):
        environment.apply(trained.environment, with_networks=False)
        runtime = platform.start_within(trained.runtime, trained.train.seed, trained.train.deterministic)
        yield checkpointer.open_checkpoint(Path(run), choice, trained.data.path, runtime), runtime


def row_scorer(trained: "AppConfig", run: "TrainedRun", runtime: "Runtime") -> "RowScorer":
    """Load a checkpoint's model and the encoder of its dataset. Raises UserError if either is not there."""
    from app.scoring import RowScorer
    from app.training import predictor
    from data_prep.encoding import Encoder

    encoder = Encoder.load(run.root)  # first: it refuses in no time
    return RowScorer(encoder, predictor.load(run.path, trained, runtime, run.root, run.manifest))


@contextmanager
def run_arithmetic(trained: "AppConfig", runtime: "Runtime") -> Iterator[None]:
    """Context in which this thread alone uses torch, with the settings by which the run's commands compute."""
    from app.runtime.platform import set_arithmetic

    with _TORCH, _restore_settings():
        set_arithmetic(trained.runtime, runtime.platform, runtime.num_threads, trained.train.deterministic)
        yield


@contextmanager
def _restore_settings() -> Iterator[None]:
    """Context after which torch's settings are those of the caller."""
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns_only)
