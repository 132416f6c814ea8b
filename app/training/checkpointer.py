"""Saving, stopping, resuming and warm start of a run."""

import math
import signal
import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.checkpoint import files, saver
from app.checkpoint.files import (
    BEST,
    CHECKPOINTS,
    FORMAT,
    LAST,
    CheckpointState,
    SavedState,
    checkpoint_name,
    find_checkpoint,
    pointed_to,
    read,
    read_state,
    whole_checkpoints,
)
from app.checkpoint.saver import (
    SafeReader,
    Saver,
    load_tensors,
    local_tensors,
    read_tensors,
    set_tensors,
    tensors_of,
    whole_tensors,
)
from app.config.app_config import AppConfig
from app.config.kinds import METRICS
from app.config.train import RuntimeConfig, metrics_of
from app.metrics.documents import EvaluationEvent, Event, Parent, monitored_value
from app.metrics.timing import StepTimer
from app.model.embeddings import Embedding
from app.record.directory import RunDirectory
from app.record.documents import CONFIG, ancestors, read_config, read_events, read_summary
from app.runtime.platform import Runtime
from app.training.recorder import Recorder
from app.training.session import Session
from app.training.state import AGREE_EVERY_STEPS, RunLength, RunState, best_of, next_monitored, score_of
from common.command import log
from common.compose import ConversionError, convert
from common.documents import Json
from common.errors import UserError
from common.files import Need, digest_file, format_bytes, require_room
from common.keys import shown, values_that_decide_bits
from common.signals import StopRequest
from data_prep.dataset.format import (
    MANIFEST_NAME,
    Manifest,
    kept_share,
    load_manifest,
    logit_correction,
    odds_factor,
    open_shard,
    sampling_sentence,
)
from data_prep.dataset.options import Encoding
from data_prep.lookup import build_table, vocabulary_path

# Parts of a run's state that its checkpoint holds under the same names; arrays are beside them.
SAVED = (*("step", "epoch", "step_in_epoch", "skipped", "measured"), *("parent", "evaluation", "best", "monitored"))


def checkpoint_state(session: Session, state: RunState, seconds: dict[str, float]) -> CheckpointState:
    """Return a checkpoint's contents besides tensors. seconds: spent so far, by kind."""
    runtime = session.runtime
    values = SavedState(
        format=FORMAT,
        **{name: deepcopy(getattr(state, name)) for name in SAVED},
        samples=session.samples(state.step),
        seconds=seconds,
        world_size=runtime.world_size,
        layout=_describe_layout(session),
        dataset=str(session.root),
        dataset_digest=session.manifest.digest,
        fingerprint=fingerprint(session.config),
        files={},  # filled in when the files are written
    )
    losses, step_seconds = state.all_losses(), state.all_step_seconds()
    return values, {"losses": losses, "step_seconds": step_seconds, "accuracies": state.accuracies}


def restore(path: Path, session: Session) -> tuple[RunState, dict[str, float], str]:
    """Load a checkpoint into a session; a collective call.

    Return the state to train from, the seconds already spent by kind, and a line for the log.
    """
    values, arrays = read(path)
    # Dataset and settings are compared before anything is loaded, since loading overwrites the model in place.
    require_dataset(path, values.dataset, values.dataset_digest, session.root, session.manifest)
    if (difference := _first_difference(values, fingerprint(session.config))) is not None:
        key, now, recorded = difference
        remedy = "give another run.name, or checkpoint.resume=never checkpoint.overwrite=true to start over"
        if session.config.checkpoint.resume != "auto":
            remedy = (
                f"give {key}={shown(recorded)} to continue it, with its own run.name to add to its record, or "
                f"checkpoint.warm_start_from={path} in place of checkpoint.resume to begin with its parameters"
            )
        raise UserError(f"{key}={shown(now)}: the run at {path} was started with {shown(recorded)}; {remedy}")
    load_tensors(path, session.model, session.optimizer)
    state = RunState(
        losses=[arrays["losses"]],
        step_seconds=[arrays["step_seconds"]],
        accuracies=arrays["accuracies"],
        **{name: getattr(values, name) for name in SAVED},
    )
    line = f"resume: from {path}, step {state.step}"
    before, layout = values.layout, _describe_layout(session)
    if changes := [f"{key} {before[key]} then, {layout[key]} now" for key in layout if before[key] != layout[key]]:
        # Micro-batches fix the order of all sums, so another layout keeps the bits. Another platform has other kernels.
        has_same_bits = session.micro_batches is not None and before["platform"] == layout["platform"]
        effect = "results agree with an uninterrupted run within rounding only, losses to 1e-5"
        line += f" ({'; '.join(changes)}: {'the same bits' if has_same_bits else effect})"
    return state, values.seconds, line


# A new run's parameters from another run's checkpoint: rows of tables by value, dense parameters by name. Where both
# runs read the same dataset, or hash values by the same modulus, a row has the same id in both. Otherwise ids are
# translated by the vocabularies of both datasets: a row is taken where its value has one in the other run, and keeps
# its initial values where the value is new. Row 0, of values without an id, is taken too.
TABLES = ".embedding_bags."  # part of the names of tables' tensors
BLOCK_ROWS = 1 << 18  # rows of a table that are copied at a time
NEW = -1  # in place of the other run's row, for a row without one


class Source(NamedTuple):
    """The other run's checkpoint, and the dataset that it was trained on."""

    checkpoint: Path
    root: Path
    manifest: Manifest


def _translate_rows(session: Session, source: Source) -> dict[str, NDArray[np.int64]]:
    """Return, by table, the other run's row of each row [num_embeddings], or NEW.

    A table that is absent has the same rows in both runs: of the same dataset, or hashed into as many rows.
    """
    root, embeddings, before, now = session.root, _embeddings_of(session), source.manifest, session.manifest
    if before.digest == now.digest:
        return {}
    if not embeddings:
        raise UserError(f"{root}: a log's tables are matched by id alone; start from a run on the same dataset")
    kinds = before.encoding.get("name"), now.encoding.get("name")
    if kinds == (Encoding.hash.value, Encoding.hash.value):
        for name, rows in now.num_embeddings.items():
            if (rows_before := before.num_embeddings.get(name, rows)) != rows:
                raise UserError(
                    f"{root}: hashes column {name} into {rows:,} rows, and {source.root} into {rows_before:,}; prepare "
                    "it with the same data.max_ind_range"
                )
        return {}
    if kinds != (Encoding.vocabulary.value, Encoding.vocabulary.value):
        raise UserError(
            f"{root}: made by data.encoding={kinds[1]}, and {source.root} by {kinds[0]}; rows are matched by value "
            "between two vocabularies, by id between two hashes; else start from a run on the same dataset"
        )
    shared = [table for table in embeddings if len(table.tables) > 1 or len(table.features) > 1]
    if shared:
        raise UserError(
            f"model.tables: {', '.join(shared[0].features)} share a table, or have a quotient-remainder one: rows are "
            "matched by id alone; start from a run on the same dataset"
        )
    return {embedding.tables[0].name: _match_values(embedding, source, session) for embedding in embeddings}


def _embeddings_of(session: Session) -> list[Embedding]:
    """Return the embeddings of a session's features; a log's tables are none."""
    return getattr(session.model.module.sparse_arch, "embeddings", [])


def _match_values(embedding: Embedding, source: Source, session: Session) -> NDArray[np.int64]:
    """Return the other run's row of each row [rows] of a table, by the value that both have; NEW without one."""
    feature, root = embedding.features[0], session.root
    rows = np.full(embedding.rows, NEW, np.int64)
    if feature not in source.manifest.num_embeddings:
        return rows
    first_before, first = source.manifest.encoding["first_id"], session.manifest.encoding["first_id"]
    # Ids below the first one are those of values without an id, in both.
    rows[: min(first, first_before)] = np.arange(min(first, first_before))
    try:
        before, values = (np.load(vocabulary_path(path, feature), allow_pickle=False) for path in (source.root, root))
    except OSError as error:
        raise UserError(
            f"{error.filename}: missing; rows are matched by its values, so make that dataset again"
        ) from error
    if before.dtype != values.dtype:
        raise UserError(f"{root}: column {feature} has values of another kind than in {source.root}; prepare it alike")
    ids = np.empty(len(values), np.int32)
    build_table(before, first_before, NEW).look_up(values, ids)
    rows[first : first + len(values)] = ids
    return rows


def _describe_rows(session: Session, source: Source, rows: Mapping[str, NDArray[np.int64]]) -> Iterator[str]:
    """Yield a line for each translated table: rows taken, new and dropped; share of train's ids with a taken row."""
    if not rows:
        yield "warm start: rows are those of the same ids, since both datasets give a value the same one"
        return
    manifest = session.manifest
    single = [name for name in manifest.schema["sparse"] if name not in manifest.ragged]
    shards = [open_shard(session.root, "train", shard, manifest) for shard in manifest.splits["train"].shards]
    for embedding in _embeddings_of(session):
        feature = embedding.features[0]
        taken = rows[embedding.tables[0].name] != NEW
        if feature in single:
            columns = [shard.sparse[:, single.index(feature)] for shard in shards]
        else:
            columns = [shard.bags[manifest.ragged.index(feature)].ids for shard in shards]
        cells = sum(len(ids) for ids in columns)
        share = sum(int(np.count_nonzero(taken[ids])) for ids in columns) / max(cells, 1)
        num_taken, num_before = int(taken.sum()), source.manifest.num_embeddings.get(feature, 0)
        counts = f"{num_taken:,} rows taken, {len(taken) - num_taken:,} new, {num_before - num_taken:,} dropped"
        yield f"warm start: {feature}: {counts}; {share:.1%} of train's cells"


def _load(session: Session, source: Source, rows: Mapping[str, NDArray[np.int64]]) -> None:
    """Overwrite tables, dense parameters and, if wanted, the optimizer's state in place; a collective call.

    rows: as from `_translate_rows`. Dense parameters of checkpoint.warm_start_skip keep their initial values, as does a
    table, or a table's state in the optimizer, that the other run lacks.
    """
    model, config = session.model, session.config.checkpoint
    optimizer, skipped = session.optimizer if config.warm_start_optimizer else None, config.warm_start_skip
    reader = SafeReader(source.checkpoint)
    metadata: dict[str, Any] = {**reader.read_metadata().state_dict_metadata}
    tensors = tensors_of(model, optimizer)
    # Tensors that are loaded whole, and by name the other run's row of each row of those that are not.
    equal, translated = dict[str, Any](), dict[str, NDArray[np.int64]]()
    for name, tensor in sorted(whole_tensors(tensors), key=lambda item: TABLES not in item[0]):
        shape = tuple(tensor.size())
        stored = tuple(metadata[name].size) if name in metadata else None
        table = name.partition(TABLES)[2].partition(".weight")[0]
        layer = name.removeprefix("model.").removeprefix("optimizer.state.dense.")
        is_skipped = not table and any(layer == begin or layer.startswith(f"{begin}.") for begin in skipped)
        if (stored is None and table) or is_skipped:
            continue
        if stored is None or stored[1:] != shape[1:] or (stored != shape and table not in rows):
            raise UserError(
                f"checkpoint.warm_start_from={source.checkpoint}: {_describe_misfit(name, table, shape, stored)}"
            )
        if table in rows:
            translated[name] = rows[table]
        else:
            equal[name] = tensor
    read_tensors(source.checkpoint, equal)
    for name, rows_before in translated.items():
        for offsets, values in reader.map_shards(name):
            for path, own_offsets, own in local_tensors(tensors):
                if path == name:
                    _take_rows(own_offsets, own, offsets, values, rows_before)
    set_tensors(model, optimizer, tensors)


def _take_rows(
    own_offsets: tuple[int, ...], own: Tensor, offsets: tuple[int, ...], values: Tensor, rows: NDArray[np.int64]
) -> None:
    """Copy rows to this process's shard from a stored shard of the other run, which begin at their offsets.

    rows: the other run's row of each row of the whole table.
    """
    columns, stored_columns = slice(None), slice(None)
    if values.dim() == 2:  # shards by columns overlap in some
        first = max(own_offsets[1], offsets[1])
        end = min(own_offsets[1] + own.shape[1], offsets[1] + values.shape[1])
        if first >= end:
            return
        columns, stored_columns = (slice(first - start, end - start) for start in (own_offsets[1], offsets[1]))
    for begin in range(0, len(own), BLOCK_ROWS):
        block = own[begin : begin + BLOCK_ROWS]
        # Counted within the stored shard, so that NEW and rows of other shards lie outside it.
        stored_rows = rows[own_offsets[0] + begin :][: len(block)] - offsets[0]
        taken = np.flatnonzero((stored_rows >= 0) & (stored_rows < len(values)))
        read = values[torch.from_numpy(stored_rows[taken])]
        if values.dim() == 2:
            block, read = block[:, columns], read[:, stored_columns]
        block[torch.from_numpy(taken).to(block.device)] = read.to(block.device)


def _describe_misfit(name: str, table: str, shape: tuple[int, ...], stored: tuple[int, ...] | None) -> str:
    """Return why a tensor does not fit, with the remedy; stored: its shape in the other run, None if it has none.

    table: the table of the tensor; empty for a dense layer's.
    """
    layer = name.removeprefix("model.").removeprefix("optimizer.state.dense.").rpartition(".")[0] or name
    difference = "is not there" if stored is None else f"has shape {list(stored)} there, {list(shape)} here"
    if not table:
        return f"{layer} {difference}; give the same layers, or checkpoint.warm_start_skip=[{layer}] to begin it anew"
    if name.startswith("optimizer."):
        return f"the optimizer's state of {table} {difference}; give checkpoint.warm_start_optimizer=false"
    assert stored is not None
    if stored[1:] != shape[1:]:
        return f"{table} has vectors of {stored[1]} values there, {shape[1]} here; give model.embedding_dim={stored[1]}"
    return f"{table} {difference}; give the tables the same settings, or start from a run on this dataset"


def warm_start(session: Session, run: Path, choice: str) -> tuple[RunState, str]:
    """Begin with the parameters of a run or checkpoint `choice`; return the state to train from and a line for the log.

    A collective call. run: this run's directory.
    """
    config, runtime, key = session.config, session.runtime, f"checkpoint.warm_start_from={choice}"
    path = runtime.on_rank_0(lambda: files.choose_start(choice))
    values, digest = read_state(path), digest_file(path / files.STATE).sha256
    summary = read_summary(path.parent.parent)
    is_last = summary is not None and summary.last.step == values.step  # evaluated after the checkpoint was saved
    takes_state = config.checkpoint.warm_start_optimizer
    parent = Parent(
        run=str(path.parent.parent),
        step=values.step,
        checkpoint_sha256=digest,
        dataset=values.dataset_digest,
        updates=(values.parent.updates if values.parent else 0) + values.step - values.skipped if takes_state else 0,
        evaluation=summary.last if summary is not None and is_last else values.evaluation,
    )
    if run.resolve() in (Path(ancestor.run).resolve() for ancestor in ancestors(parent)):
        raise UserError(f"{key}: is this run, or began with its parameters; give another run.name")
    root, manifest = open_dataset(values.dataset, path, values.dataset, values.dataset_digest)
    now = fingerprint(config)
    for name in ("model.name", *(("optimizer.name", "optimizer.dense") if takes_state else ())):
        if (before := values.fingerprint.get(name)) != now.get(name):
            same = f"{name.removesuffix('.name')}={shown(before)}"
            anew = "" if name == "model.name" else ", or checkpoint.warm_start_optimizer=false to begin its state anew"
            raise UserError(
                f"{key}: was trained with {name}={shown(before)}, not {shown(now.get(name))}; give {same}{anew}"
            )
    source = Source(path, root, manifest)
    rows = _translate_rows(session, source)
    if runtime.rank == 0:
        for line in _describe_rows(session, source, rows):
            log.info(line)
    _load(session, source, rows)
    return RunState(parent=parent), f"warm start: from {path}, step {values.step}"


def _places(run: Path, recorded: str) -> list[Path]:
    """Return where a path that a run recorded may be now.

    A relative one counts from the directory where the run was started, which holds the run's own directory, so a run
    is usable from any directory.
    """
    return [Path(recorded), *(above / recorded for above in run.absolute().parents)]


def parent_of(run: Path, parent: Parent) -> str:
    """Return the path of the checkpoint that a run began with. Raises UserError if it is gone, or has changed."""
    for place in _places(run, parent.run):
        checkpoint = place / CHECKPOINTS / checkpoint_name(parent.step)
        if (checkpoint / files.STATE).exists():
            if digest_file(checkpoint / files.STATE).sha256 == parent.checkpoint_sha256:
                return str(checkpoint)
            raise UserError(f"run={run}: began with {checkpoint}, which has changed; restore it to replay the run")
    raise UserError(
        f"run={run}: began with step {parent.step} of {parent.run}, which is not there; restore it to replay the run"
    )


def adopt_evaluations(
    state: RunState, directory: RunDirectory, config: AppConfig, seconds: dict[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the values of a resumed run's state that its record changes, and its `seconds` spent; call on rank 0.

    The record may know more than the checkpoint, which is saved before its step is evaluated. If the best is to be
    kept, only evaluations whose checkpoint is still there qualify.
    """
    recorded = [event for event in read_events(directory.path) if isinstance(event, EvaluationEvent)]
    summary, monitor = read_summary(directory.path), config.train.monitor
    # An evaluation of the state's step that lacks the training split will be repeated.
    has_train = any(event.event == "eval_train" and event.step == state.step for event in recorded)
    stop = state.step + 1 if has_train or not config.eval.train_split else state.step
    evaluations = [state.evaluation] if state.evaluation is not None else []
    evaluations += [event.figures() for event in recorded if event.event == "eval" and event.step < stop]
    evaluations += [summary.last] if summary is not None and summary.last.step == state.step else []
    last = max(evaluations, key=lambda evaluation: evaluation.step or 0, default=None)
    if last is not None and (last.split or config.eval.split) != config.eval.split:
        raise UserError(
            f"eval.split={config.eval.split}: {directory.path} evaluates {last.split}, by which it keeps its best; "
            f"give eval.split={last.split} or another run.name, and for figures of another split "
            f"python -m app.evaluate run={directory.path} split={config.eval.split}"
        )
    # Figures of different splits cannot be ranked beside each other.
    same_split = [evaluation for evaluation in evaluations if last is not None and evaluation.split == last.split]
    candidates = [best for evaluation in same_split if (best := best_of(evaluation, monitor)) is not None]
    candidates += [state.best] if state.best is not None else []
    if config.checkpoint.keep_best:
        kept = {path.name for path in whole_checkpoints(directory.checkpoints)}
        candidates = [candidate for candidate in candidates if checkpoint_name(candidate.step) in kept]
    # The earliest of equal scores wins, as in an uninterrupted run: max takes the first of them.
    candidates.sort(key=lambda candidate: candidate.step)
    best = max(candidates, key=lambda candidate: score_of(candidate, monitor), default=None)
    adopted: dict[str, Any] = {"evaluation": last, "best": best}
    is_newer = last is not None and last.step == state.step and state.evaluated_at != state.step
    events = [event for event in recorded if is_newer and event.step == state.step]
    eval_time = sum(event.eval_seconds or 0.0 for event in events)
    seconds = {**seconds, "eval": seconds.get("eval", 0.0) + eval_time, "total": seconds.get("total", 0.0) + eval_time}
    if summary is not None and summary.steps == state.step and summary.status != "failed":  # the run ended at this step
        seconds = summary.seconds or seconds
    # The checkpoint was saved before this evaluation, so its monitor has not seen it.
    if last is not None and is_newer:
        value = monitored_value(last, monitor)
        adopted["monitored"] = next_monitored(state.monitored, value, monitor, config.schedule)
    return adopted, seconds


def require_dataset(trained: Path, path_then: str, digest_then: str, root: Path, manifest: Manifest) -> None:
    """Raise UserError if a dataset is not the one that the run or checkpoint `trained` was trained on."""
    if manifest.digest != digest_then:
        elsewhere = f"{path_then} as it was when the run started" if str(root) == path_then else path_then
        raise UserError(
            f"{root}: not the dataset that {trained} was trained on, {elsewhere}; give that, or another run; "
            "app.evaluate measures new rows with data.raw=FILE"
        )


def _describe_layout(session: Session) -> dict[str, int | str]:
    """Return the conditions that a resumption may change, though bits may then differ."""
    return {
        "processes": session.runtime.world_size,
        "threads": session.runtime.num_threads,
        "platform": session.runtime.platform,
        "sharding": session.plan.summary(),
        "compile": session.compiled,
    }


def fingerprint(config: AppConfig) -> Json:
    """Return the keys that a resumption must not change, with their values."""
    keys: Json = values_that_decide_bits(config)
    if not any(METRICS[name].over for name in metrics_of(config.train.monitor)):
        del keys["eval.group_by"]  # no evaluation ranks by it
    return keys


def _first_difference(saved: SavedState, now: Json) -> tuple[str, object, object] | None:
    """Return the first key of the fingerprint `now` that a checkpoint's differs in, with both values; None if equal."""
    recorded = saved.fingerprint
    keys = (*now, *(key for key in recorded if key not in now))
    return next(((key, now.get(key), recorded.get(key)) for key in keys if now.get(key) != recorded.get(key)), None)


class TrainedRun(NamedTuple):
    """A checkpoint, its state (see `checkpoint_state`), and the dataset that its run was trained on.

    best: whether its run keeps it as the best. newest: the run's newest checkpoint, if it has any. class_weights: of
    the loss that it was trained by.
    """

    path: Path
    state: SavedState
    root: Path
    manifest: Manifest
    best: bool
    newest: Path | None
    class_weights: list[float] | None

    @property
    def last(self) -> bool:
        """Return whether it is its run's newest checkpoint."""
        return self.newest is not None and self.path.resolve() == self.newest.resolve()

    @property
    def about(self) -> Json:
        """Return entries that describe it in a command's JSON."""
        return {"checkpoint": self.path.name, "step": self.state.step, "best": self.best, "last": self.last}

    def correction(self, corrected: bool) -> float:
        """Return the logit offset for sampling and class weights, and log it; 0 if not `corrected`.

        Raises UserError if there is nothing to correct, or nothing to correct by.
        """
        kept, sentence = kept_share(self.manifest), sampling_sentence(self.manifest, self.class_weights)
        if not corrected:
            if sentence is not None:
                log.warning("%s: %s", self.root, sentence)
            return 0.0
        if kept == 0 or sentence is None:
            rows = "no row" if kept == 0 else "every row"
            unweighted = "" if self.class_weights or kept == 0 else ", and the run has no loss.class_weights"
            raise UserError(f"correct_sampling=true: {self.root} kept {rows} with label 0{unweighted}; leave it out")
        factor = odds_factor(kept, self.class_weights)
        log.info("correct_sampling: probabilities p are p / (p + (1 - p) / %g), those of all rows", factor)
        return logit_correction(kept, self.class_weights)

    def about_sampling(self, corrected: bool) -> Json:
        """Return entries for a command's JSON on what shifts probabilities; empty if nothing does."""
        kept = kept_share(self.manifest)
        reasons: Json = {} if kept == 1 else {"kept_share": kept}
        if self.class_weights:
            reasons["class_weights"] = self.class_weights
        return {**reasons, "correct_sampling": corrected} if reasons else {}

    def log_chosen_checkpoint(self) -> None:
        """Log which checkpoint was taken. Call after validation, so that an error stays one line."""
        kinds = [kind for kind, holds in (("the best", self.best), ("the last", self.last)) if holds]
        role = f", {' and '.join(kinds)} of the run" if kinds else ""
        others = f"; the last is {self.newest.name} (checkpoint={LAST})" if self.newest and not self.last else ""
        log.info("checkpoint: %s, step %d%s%s", self.path, self.state.step, role, others)


def open_checkpoint(run: Path, choice: str | None, dataset: str | None, runtime: Runtime) -> TrainedRun:
    """Return the checkpoint that `find_checkpoint` selects, with its dataset; a collective call.

    choice: as of the key checkpoint. dataset: the dataset's path; None: where the run had it.
    """
    path = runtime.on_rank_0(lambda: find_checkpoint(run, choice))
    state, config = read_state(path), convert(AppConfig, read_config(run))
    if (difference := _first_difference(state, fingerprint(config))) is not None:
        key, now, recorded = difference
        raise UserError(
            f"checkpoint={path}: was trained with {key}={recorded}, and run={run} with {now}; give its own run=, or a "
            f"checkpoint in {run / CHECKPOINTS}"
        )
    best, checkpoints = pointed_to(run / CHECKPOINTS, BEST), whole_checkpoints(run / CHECKPOINTS)
    is_best = best is not None and path.resolve() == best.resolve()
    root, manifest = open_dataset(dataset, path, state.dataset, state.dataset_digest)
    newest = checkpoints[-1] if checkpoints else None
    return TrainedRun(path, state, root, manifest, is_best, newest, config.loss.class_weights)


def open_dataset(path: str | None, trained: Path, path_then: str, digest_then: str) -> tuple[Path, Manifest]:
    """Return the directory and manifest of the dataset at data.path.

    Raises UserError if it is not the one, at `path_then` with `digest_then`, that `trained` was trained on.
    """
    root = Path(path or "")
    if not (root / MANIFEST_NAME).exists():
        raise UserError(
            f"{root}: no dataset here, and {trained} was trained on it; give data.path=DATASET (in Python "
            "data=DATASET), or make it again by the run's own command"
        )
    manifest = load_manifest(root)
    require_dataset(trained, path_then, digest_then, root, manifest)
    return root, manifest


def trained_config(run: Path, overrides: RuntimeConfig, data_path: str | None) -> AppConfig:
    """Return a run's own configuration, with the requested runtime and the dataset's present path.

    data_path: of the dataset; None: where the run had it.
    """
    try:
        config = convert(AppConfig, read_config(run))
    except ConversionError as error:
        raise UserError(f"run={run}: {CONFIG} is of another version ({error}); use that one, or train again") from error
    # The run's own arithmetic is the default, so that figures agree with those of its training.
    runtime = replace(
        overrides,
        precision=overrides.precision or config.runtime.precision,
        compile=config.runtime.compile if overrides.compile == "auto" else overrides.compile,
        num_threads=overrides.num_threads or config.runtime.num_threads,
    )
    path = data_path or config.data.path
    if not data_path and path is not None:
        path = str(next((place for place in _places(run, path) if (place / MANIFEST_NAME).exists()), path))
    return replace(config, runtime=runtime, data=replace(config.data, path=path))


NO_SPACE = "free some, or give run.dir on another disk, checkpoint.keep=1 or checkpoint.keep_best=false"


class Checkpointer:
    """Saves a session's state in its run's directory, and decides to stop, the same on all processes.

    stop: the request to stop; None if signals end the command.
    """

    def __init__(self, session: Session, recorder: Recorder, timer: StepTimer) -> None:
        """Make the saver; a collective call."""
        self.config = session.config.checkpoint
        self.stop: StopRequest | None = None
        self.saved_step: int | None = None  # the newest step with a checkpoint in this run's directory
        self._session, self._recorder, self._timer = session, recorder, timer
        self._directory = recorder.directory.checkpoints
        local_world_size = session.runtime.local_world_size
        self.saver = Saver(self._directory, self.config.keep, self.config.asynchronous, local_world_size)
        self._stalls: dict[int, float] = {}  # seconds that training waited while a step was saved
        self._saved_at = time.perf_counter()

    def require_space(self, step: int, length: RunLength) -> None:
        """Refuse a run that continues from `step` if its checkpoints do not fit on the disk; a collective call."""
        size = saver.stored_bytes(saver.tensors_of(self._session.model, self._session.optimizer))
        old_files = [path for checkpoint in files.whole_checkpoints(self._directory) for path in checkpoint.iterdir()]
        remaining, all_steps = length.total_steps - step, max(1, length.total_steps)
        evaluations = int(remaining // (length.distance or all_steps)) if self.config.keep_best else 0
        # An old one is removed when the new one is complete. The best is one more, as it may be older than those kept;
        # of a single evaluation, it is the newest.
        number = self.config.keep + 1 + (evaluations > 1)
        # Without an interval in minutes the number of saves is known, and may be below the limit of keep.
        if self.config.every_minutes is None:
            number = min(number, 1 + (remaining - 1) // (self.config.every_steps or all_steps) + evaluations)
        # The bytes of old checkpoints count as free, since they are removed one by one. A whole new one must fit first.
        num_bytes = max(size, number * size - sum(path.stat().st_size for path in old_files))
        need = Need(self._directory, num_bytes, f"for checkpoints of {format_bytes(size)}, up to {number} at a time")
        self._session.runtime.on_rank_0(lambda: require_room([need], NO_SPACE))

    def due(self, step: int) -> bool:
        """Return whether to save at this step; the same on all processes."""
        if self.config.every_steps is not None and step % self.config.every_steps == 0:
            return True
        # Clocks differ between processes, so they agree on the longest wait, and only now and then: it is an exchange.
        if self.config.every_minutes is None or step % AGREE_EVERY_STEPS:
            return False
        waited = self._session.runtime.highest(time.perf_counter() - self._saved_at)
        return waited >= self.config.every_minutes * 60

    def save(self, state: RunState, best: bool = False) -> None:
        """Begin to write a checkpoint of the state, if its step has none. Raises UserError as Saver.save does."""
        if self.saved_step == state.step:
            return
        with self._timer.apart("checkpoint"):
            began = time.perf_counter()
            # The checkpoint's sums include the energy so far, so that a resumed run counts it exactly once.
            self._recorder.measure_energy()
            content = checkpoint_state(self._session, state, self._recorder.seconds())
            self.saver.save(state.step, self._session.model, self._session.optimizer, content, best)
            self._stalls[state.step] = time.perf_counter() - began
        self.saved_step, self._saved_at = state.step, time.perf_counter()
        self.report_finished()

    def keep_best(self, state: RunState) -> None:
        """With checkpoint.keep_best, keep the state as the best so far: save it, or mark its checkpoint."""
        if not self.config.keep_best:
            return
        if self.saved_step != state.step:
            self.save(state, best=True)
            return
        with self._timer.apart("checkpoint"):
            self.saver.mark_best(state.step)
        self.report_finished()

    def report_finished(self) -> None:
        """Report each checkpoint that was completed since the last call."""
        for step, seconds in self.saver.finished():
            about: Json = {"path": checkpoint_name(step), "write_seconds": seconds}
            about["stall_seconds"] = self._stalls.pop(step)
            self._recorder.event(Event(event="checkpoint", step=step, rest=about))

    def wait(self) -> None:
        """Wait until all is written. Raises UserError if something cannot be."""
        with self._timer.apart("checkpoint"):
            self.saver.wait()
        self.report_finished()

    def stop_requested(self, step: int) -> bool:
        """Return whether to stop after this step or evaluation batch; several processes agree every AGREE_EVERY_STEPS.

        Raises UserError if a checkpoint could not be written.
        """
        self.report_finished()
        runtime, config = self._session.runtime, self._session.config
        over = time.perf_counter() - self._recorder.began >= (config.train.max_minutes or math.inf) * 60
        came = self.stop.signal if self.stop is not None else None
        reasons = np.array([self.saver.failed(), int(came or 0), over], np.int64)
        # Processes must stop at the same step. Agreement takes an exchange, which would slow down every step.
        if runtime.world_size > 1:
            if step % AGREE_EVERY_STEPS:
                return False
            reasons = np.max(runtime.gather(reasons), axis=0)
        failed, number, over = reasons.tolist()
        if failed:
            self.wait()  # which raises, on all processes
        if number and came is None and self.stop is not None:
            self.stop.note(number)
            log.warning("%s: another process was asked to stop", signal.Signals(number).name)
        return bool(failed or number or over)
