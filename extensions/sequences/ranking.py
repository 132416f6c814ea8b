"""Ranking of items for a user of a log of events."""

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.config import AppConfig
from app.config.commands import RecommendConfig
from app.runtime.platform import Runtime
from app.scoring.candidates import ignored_columns
from app.scoring.ranking import ALL, NONE_SCORED, Scored
from app.training import predictor
from app.training.resume import TrainedRun
from common.errors import UserError
from data_prep.encoding.new_rows import NewRows, Shape, read_new_rows
from data_prep.encoding.values import text_key
from extensions.sequences.event_arrays import known_items
from extensions.sequences.event_log import Candidates, EventLog, open_log
from extensions.sequences.event_schema import FLAG_BIT, EventSchema

log = logging.getLogger("clickwork")


def score_items(config: RecommendConfig, trained: AppConfig, run: TrainedRun, runtime: Runtime) -> Scored:
    """Score items after the events of one user in a dataset of events."""
    history = open_log(run.root, run.manifest, trained)
    schema, arrays = history.schema, history.events
    keys, ids = known_items(run.root, run.manifest, arrays)
    if config.candidates == ALL:
        if (keys < 0).any():
            raise UserError(f"candidates={ALL}: {run.root} keeps no names of its items, which are texts; give a file")
        candidates = NewRows(ALL, {schema.item: [str(key) for key in keys.tolist()]}, range(1, len(keys) + 1))
    else:
        candidates = _read_items(config, schema)
        if not candidates.numbers:
            return NONE_SCORED
    names = candidates.texts(schema.item)
    item_keys = np.array([text_key(text) for text in names], np.int64)
    places = np.minimum(np.searchsorted(keys, item_keys), len(keys) - 1)
    if (unknown := keys[places] != item_keys).any():
        row = int(unknown.argmax())
        place = f"{candidates.name}: row {candidates.numbers[row]}"
        raise UserError(f"{place}: {schema.item} {names[row]} is not in the log of {run.root}; leave it out")
    items = ids[places].astype(np.int32)
    user, end, time = _history(config, history, candidates)
    flagged = _flagged(schema, candidates)
    candidate_set = Candidates(items, np.full(len(items), time), np.where(flagged, FLAG_BIT, 0).astype(np.uint8))
    order = np.lexsort((flagged, items))
    logits = np.empty(len(items), np.float32)
    scorer = predictor.load(run.path, trained, runtime, run.root, run.manifest)
    logits[order] = scorer.score(history.candidates(user, end, candidate_set.take(order))).logits
    if config.id_column in candidates.columns:
        names = candidates.texts(config.id_column)
    about = {"user": config.user, "time": time, "history": end - int(arrays.offsets[user])}
    return Scored(names, logits, order, np.zeros((len(items), 0), np.bool_), (), about)


def _flagged(schema: EventSchema, candidates: NewRows) -> NDArray[np.bool_]:
    """Return a mask of candidates with the log's flag, read like the log's events; all False without such a column."""
    if schema.flag not in candidates.columns:
        return np.zeros(len(candidates.numbers), np.bool_)
    return candidates.truths(schema.flag)


def _read_items(config: RecommendConfig, schema: EventSchema) -> NewRows:
    """Read the items of a file: a column of that name, or a single column without names."""
    spare = (config.id_column, schema.flag or "", schema.user)
    shape = Shape((schema.item,), schema.delimiter, label="", required_columns=(schema.item, *spare))
    candidates = read_new_rows(Path(config.candidates), shape)
    if ignored := ignored_columns(candidates, [schema.item], spare):
        log.info("candidates: the model does not read %s", ", ".join(ignored))
    return candidates


def _history(config: RecommendConfig, history: EventLog, candidates: NewRows) -> tuple[int, int, int]:
    """Return the user's index, the number of the event that its history ends before, and the candidates' time."""
    arrays, column = history.events, history.schema.user
    of_rows = candidates.texts(column) if column in candidates.columns else []
    for number, text in zip(candidates.numbers, of_rows, strict=False):
        if config.user is not None and text not in ("", config.user):
            place = f"{candidates.name}: row {number}, column {column}"
            raise UserError(f"user={config.user}: {place} has {text}; leave the column or user=ID out")
    users = {config.user} if config.user is not None else set(of_rows)
    if len(users) != 1:
        raise UserError(f"user: {len(users)} users are given in column {column}; give one, as in the log: user=ID")
    [user] = users
    assert user is not None
    places = np.flatnonzero(arrays.users == text_key(user))
    if not len(places):
        raise UserError(f"user={user}: not in the log; give one of its users, as in its column {column}")
    index = int(places[0])
    start, stop = arrays.offsets[index : index + 2].tolist()
    last = arrays.offsets[1:][np.diff(arrays.offsets) > 0] - 1
    time = int(arrays.times[last].max()) if config.time is None else config.time
    end = stop if config.time is None else start + int(np.searchsorted(arrays.times[start:stop], time, "left"))
    if end - start < history.min_history:
        raise UserError(
            f"user={user}: {end - start} events before time={time}, and samples of the run have at least "
            f"{history.min_history} (sequences.min_history); give a user with more"
        )
    return index, end, time
