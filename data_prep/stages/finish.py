"""What a dataset is published with: the manifest, its figures, and warnings of misleading rows."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from common.documents import Json
from common.errors import UserError
from common.files import FileDigest
from data_prep.codec.values import Form, to_text, unpack
from data_prep.config import num_embeddings
from data_prep.dataset.format import SPLITS, UNSEEN, WEIGHTS, Manifest, build_manifest
from data_prep.dataset.kinds import SHARED_IDS, UNKNOWN_SHARE, VALUES_PER_ROW
from data_prep.dataset.options import DenseTransform, LabelKind, SplitMethod, to_json
from data_prep.io import open_array
from data_prep.job import ChunkRecord, Job
from data_prep.lookup import DenseRange
from data_prep.stages.fit import VocabularyRecord
from data_prep.stages.place import held_out_splits, rows_by_source
from data_prep.stages.write import BuiltShard

MAX_ROWS = 1 << 20  # Ids of larger train splits are not compared.


@dataclass
class Result:
    """Results of the stages, from which the manifest is made."""

    records: list[ChunkRecord]
    digests: list[FileDigest]
    forms: list[Form]  # spellings of each sparse column of a user's own table
    md5s: list[str]  # of each source if splits are given
    workers: int
    num_values: dict[str, int | None]  # size of the vocabulary, None without one, of each sparse feature that is kept
    rows: dict[str, int] = field(default_factory=dict)
    vocabularies: dict[str, VocabularyRecord] = field(default_factory=dict)
    fits: dict[str, list[float]] = field(default_factory=dict)  # of dense columns whose own transform needs one
    ranges: list[DenseRange] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)  # columns with one value in all rows
    warnings: list[str] = field(default_factory=list)  # sentences about other columns
    built: list[BuiltShard] = field(default_factory=list)
    peak_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage


def describe_dataset(job: Job, result: Result, parameters: dict[str, Any], extra: dict[str, Any]) -> Manifest:
    """Build the manifest.

    parameters: entries of `encoding` that were settled before the rows were read. extra: see `Manifest`.
    """
    schema = replace(job.schema, sparse=tuple(result.num_values))
    ranges = [{"low": bounds.low.tolist(), "high": bounds.high.tolist()} for bounds in result.ranges]
    encoding = parameters | {"raw_schema": to_json(job.schema), "dense_range": ranges}
    if result.vocabularies:
        encoding["vocabulary"] = {name: result.vocabularies[name].to_manifest() for name in schema.sparse}
    if job.table is not None:
        encoding |= {"dense_fits": result.fits} if result.fits else {}
        encoding |= {"mean_weight": mean_weight(job, result.built)} if job.schema.weight else {}
        encoding["spellings"] = dict(zip(job.schema.sparse, map(to_text, result.forms), strict=True))
    names, rows = [source.name for source in job.sources], rows_by_source(job, result.records)
    manifest = build_manifest(
        schema,
        encoding,
        num_embeddings={name: num_embeddings(job.rules, count) for name, count in result.num_values.items()},
        shards=[(shard.split, shard.shard, shard.positives) for shard in result.built],
        sources=zip(names, result.digests, rows, strict=True),
        extra=extra,
    )
    for entry, source in zip(manifest.sources, job.sources, strict=True):
        if source.split is not None:
            entry["split"] = source.split
    return manifest


def id_figures(
    job: Job, built: Sequence[BuiltShard], records: Sequence[ChunkRecord], num_values: Mapping[str, int | None]
) -> Json:
    """Return the figures of ids for the manifest's `extra`: values without an id of their own, unseen and shared ids.

    `out_of_vocabulary` has their number by split and feature; None where known values may share the unknown ones' id.
    num_values: size of each feature's vocabulary, None without one.
    """
    features = tuple(num_values)
    unknown: dict[str, dict[str, int]] | None = None
    if not job.rules.shares_unknown_id:
        counts = {split: [shard.unknown for shard in built if shard.split == split] for split in SPLITS}
        totals = {split: np.sum([[0] * len(features), *each], axis=0).tolist() for split, each in counts.items()}
        unknown = {split: dict(zip(features, total, strict=True)) for split, total in totals.items()}
    return {
        "out_of_vocabulary": unknown,
        UNSEEN: unseen_shares(job, built, features),
        SHARED_IDS: shared_ids(job, built, records, num_values),
    }


def unseen_shares(job: Job, built: Sequence[BuiltShard], features: Sequence[str]) -> dict[str, float] | None:
    """Return the share of val's and test's values that are not in train, by feature.

    With a vocabulary fitted on train, such values have no id. Rare and capped values have none either, so the share of
    values without an id in train is subtracted.

    Returns None if the shares are unknown: no held-out rows, or too many rows to compare.
    """
    train = [shard for shard in built if shard.split == "train"]
    held_out = [shard for shard in built if shard.split != "train"]
    if not held_out:
        return None
    if job.rules.fitted_on_train and job.rules.order is not None:
        train_share, held_out_share = (_unknown_share(job, shards, features) for shards in (train, held_out))
        shares = np.maximum(held_out_share - train_share, 0)
    elif sum(shard.shard.rows for shard in train) <= MAX_ROWS:
        # Ids of val and test that train lacks have rows in tables that no step of training reaches.
        new, total = np.zeros(len(features)), np.zeros(len(features))
        trained, others = ([_ids_by_feature(job, shard, features) for shard in shards] for shards in (train, held_out))
        for number in range(len(features)):
            known = np.concatenate([ids[number] for ids in trained])
            for ids in others:
                new[number] += np.count_nonzero(~np.isin(ids[number], known))
                total[number] += len(ids[number])
        shares = np.asarray(new / np.maximum(total, 1), np.float64)
    else:
        return None
    return dict(zip(features, shares.tolist(), strict=True))


def shared_ids(
    job: Job, built: Sequence[BuiltShard], records: Sequence[ChunkRecord], num_values: Mapping[str, int | None]
) -> dict[str, dict[str, float]]:
    """Return what `data.max_ind_range` merges, by figure and feature; {} without a limit, or where it is not known.

    VALUES_PER_ROW: different values per row of a feature's table, if values are wrapped or hashed into it.
    UNKNOWN_SHARE: share of train's values without an id of their own, if ids beyond the limit are the unknown id.

    num_values: size of each feature's vocabulary, None without one.
    """
    rules, features = job.rules, tuple(num_values)
    if rules.max_ind_range is None:
        return {}
    if rules.order is not None and rules.wraps:  # the ids of a vocabulary, modulo the limit
        return {VALUES_PER_ROW: {name: max(1, (n or 0) / rules.max_ind_range) for name, n in num_values.items()}}
    if rules.shares_unknown_id:
        return {}
    if rules.order is None:
        # Hashed values are counted by chunk, Criteo's in the first rows alone; the largest count stands. Without a
        # chunk that counted its values there are no features in the result.
        per_row = zip(*(record.values_per_row for record in records if record.values_per_row), strict=True)
        return {VALUES_PER_ROW: dict(zip(features, map(max, per_row), strict=False))}
    train = [shard for shard in built if shard.split == "train"]
    return {UNKNOWN_SHARE: dict(zip(features, _unknown_share(job, train, features).tolist(), strict=True))}


def _ids_by_feature(job: Job, shard: BuiltShard, features: Sequence[str]) -> list[NDArray[np.int32]]:
    """Map the ids of each feature in a shard that is still in the directory of the job's work: [values] each."""
    arrays = {target.rsplit(".", 2)[-2]: open_array(job.work / source) for source, target in shard.moves}
    ragged = job.schema.ragged
    bags = iter(unpack(arrays["values"], arrays["offsets"], len(ragged)) if ragged else ())
    single = iter(arrays["sparse"].T)
    return [next(bags).ids if name in ragged else next(single) for name in features]


def _unknown_share(job: Job, shards: Sequence[BuiltShard], features: Sequence[str]) -> NDArray[np.float64]:
    """Return the share of each feature's values without an id of their own, over shards: [features]."""
    unknown = np.sum([shard.unknown for shard in shards], axis=0)
    values = np.sum([[len(ids) for ids in _ids_by_feature(job, shard, features)] for shard in shards], axis=0)
    return np.asarray(unknown / np.maximum(values, 1), np.float64)


SORTED_DIFFERENCE = 0.5  # between the label rates of two splits; above it, rows may be sorted by label
MIN_ROWS = 100  # a smaller split's label rate says nothing
SHOWN_COLUMNS = 8
ONE_CLASS = (0.0, 1.0)  # label rates


def refuse_labels(job: Job, records: Sequence[ChunkRecord], is_allowed: bool) -> None:
    """Refuse a positive label of a user's own table that no row has, and rows that all have the same label.

    records: chunks that may be in train. is_allowed: whether all labels may be the same (data.allow_degenerate).
    """
    if job.table is None:
        return
    from data_prep.parsing.readers import describe_label_values  # imports pyarrow, which Criteo's rows do not need

    sources = [source for source in job.sources if source.split in (None, "train")]
    place = f"{sources[0].path}, column {job.table.label}"
    if job.table.positive:
        counts = np.sum([record.positive_rows for record in records if record.rows], axis=0).tolist()
        absent = [value for value, count in zip(job.table.positive, counts, strict=True) if not count]
        if absent:
            raise UserError(
                f"{place}: no row has the label {json.dumps(absent[0])} of positive; "
                f"{describe_label_values(job.table, sources)}; correct positive in data.schema, or leave the value out"
            )
    rows, positives = sum(record.rows for record in records), sum(record.positives for record in records)
    if not is_allowed and job.schema.label_kind is not LabelKind.number and positives in (0, rows):
        rule = "" if job.table.rule is None else f" by the rule {job.table.rule}"
        raise UserError(
            f"{place}: every label is {int(positives > 0)}{rule}, so no model can learn from them; "
            f"{describe_label_values(job.table, sources)}; correct the column or its rule in data.schema, "
            "or give data.allow_degenerate=true"
        )


def refuse_empty_splits(job: Job, rows: dict[str, int], is_allowed: bool) -> None:
    """Refuse a dataset without a row to train on, or without rows of a split that a column or the labels decide.

    rows: each split's number of rows. is_allowed: whether val and test may be empty (data.allow_degenerate).
    """
    total, method = sum(rows.values()), job.rules.split
    if not total or (method is None and not rows["train"]):
        place = " of data.train" if method is None else ""
        raise UserError(f"data.sampling.negative_drop_rate: no row{place} is left; give a lower rate")
    if method is not None and not rows["train"]:
        raise UserError(
            f"data.split: all {total} rows are held out (method {method.value}), none is left to "
            "train on; give more rows, or a smaller data.split.held_out"
        )
    empty = [split for split in held_out_splits(job) if not rows[split]]
    if empty and method is not None and method.algorithm.reads and job.rules.held_out and not is_allowed:
        column = "" if job.rules.split_column is UNSET else f" data.split.column={job.rules.split_column}"
        raise UserError(
            f"data.split.method={method.value}{column}: {' and '.join(empty)} would have no rows, since these "
            f"{total} have too few values; give a larger data.split.held_out, another data.split.seed "
            "or method, or data.allow_degenerate=true"
        )


def mean_weight(job: Job, built: Sequence[BuiltShard]) -> float:
    """Return the mean of train's sample weights. Raise UserError if all weights of a split are 0."""
    sums: dict[str, list[float]] = {}
    for shard in built:
        [path] = (job.work / path for path, target in shard.moves if target.endswith(f".{WEIGHTS}.npy"))
        sums.setdefault(shard.split, []).append(float(open_array(path).sum(dtype=np.float64)))
    for split, shard_sums in sums.items():
        if not math.fsum(shard_sums):
            raise UserError(
                f"{job.sources[0].path}, column {job.schema.weight}: every weight of {split} is 0, so its rows count "
                "for nothing; correct the column, or leave weight out of data.schema"
            )
    return math.fsum(sums["train"]) / sum(shard.shard.rows for shard in built if shard.split == "train")


def warnings(manifest: Manifest, constant: Sequence[str]) -> Iterator[str]:
    """Yield warnings about empty or one-class splits, rows sorted by label, and columns with one value."""
    splits = manifest.splits
    has_files = manifest.has_given_splits
    if has_files and not splits["val"].rows and not splits["test"].rows:
        yield "there is nothing to evaluate on; give data.val or data.test"
    elif not has_files and not splits["test"].rows:
        yield "test has no rows, so there is nothing to evaluate on; give more rows, or a larger data.split.held_out"
    one_class = [name for name, split in splits.items() if split.label_rate in ONE_CLASS]
    rates = [split.label_rate for split in splits.values() if split.label_rate is not None and split.rows >= MIN_ROWS]
    if manifest.label_rate in ONE_CLASS:
        yield f"every label is {manifest.label_rate:.0f}: there is nothing to learn; check the label's column and rule"
    elif one_class or (rates and max(rates) - min(rates) > SORTED_DIFFERENCE):
        rate_list = ", ".join(f"{name} {split.label_rate:.4f}" for name, split in splits.items() if split.rows)
        about = f"only one class in {' and '.join(one_class)}, so AUC is undefined there; " if one_class else ""
        remedy = "check that the files are of the same rule of labels"
        remedy = remedy if has_files else "if the rows are sorted by label, set data.split.method=random"
        yield f"label rates differ ({rate_list}): {about}{remedy}"
    if constant:
        names = _join_names(constant)
        yield f"the same value, or none, in every row of {names}: nothing can be learned from such a column"


def random_split_of_times(job: Job, method: SplitMethod | None) -> Iterator[str]:
    """Warn if rows with times are split at random although the configuration does not ask for it."""
    times = [] if job.table is None else list(dict.fromkeys(part.column for part in job.table.parts))
    split = job.rules.split
    if times and split is not None and split is not method and split.algorithm.is_random:
        by_time = next(choice.value for choice in SplitMethod if choice.algorithm.reads == "times")
        yield (
            f"rows are split at random although {_join_names(times)} is a time, so the score is not of later rows; "
            f"give data.split.method={by_time} data.split.column={times[0]} data.overwrite=true, or say by "
            f"data.split.method={split.value} that this is wanted"
        )


def cut_columns(job: Job, records: Sequence[ChunkRecord]) -> Iterator[str]:
    """Warn about negative numbers of a user's own table that log1p turns into 0."""
    if job.table is None or not job.schema.dense:
        return
    own = dict(job.table.transforms)
    counts = np.sum([record.negatives for record in records if record.rows], axis=0).tolist()
    cut = {
        name: count
        for name, count in zip(job.schema.dense, counts, strict=True)
        if count and own.get(name, job.rules.dense_transform.value) == DenseTransform.log1p.value
    }
    for is_own, setting in ((False, "data.dense_transform=signed_log1p"), (True, "transform: signed_log1p for them")):
        if columns := [f"{count:,} of {name}" for name, count in cut.items() if (name in own) is is_own]:
            yield f"negative numbers are 0 by log1p: {_join_names(columns)}; {setting} keeps them"


def undivided_columns(job: Job, records: Sequence[ChunkRecord]) -> Iterator[str]:
    """Warn about columns whose separator divides no field, so that each field is one value."""
    separators = {} if job.table is None else dict(job.table.separators)
    # Without any row there are no lengths, and no column is reported.
    longest = zip(*(record.longest for record in records if record.rows), strict=True)
    columns = [
        f"{name} ({separators[name]!r})"
        for name, lengths in zip(job.schema.ragged, longest, strict=False)
        if separators.get(name) and max(lengths) == 1
    ]
    if columns:
        yield f"the separator occurs in no field of {_join_names(columns)}: check it in data.schema"


def rare_columns(job: Job, vocabularies: Mapping[str, VocabularyRecord], is_allowed: bool) -> Iterator[str]:
    """Warn about columns in which no value is frequent enough for an id; refuse if there is no other column.

    is_allowed: whether all columns may be without ids (data.allow_degenerate).
    """
    threshold = job.rules.frequency_threshold
    columns = [name for name, entry in vocabularies.items() if not entry.values] if threshold > 1 else []
    key = f"data.frequency_threshold={threshold}"
    if columns and len(columns) == len(vocabularies) and not is_allowed:
        raise UserError(
            f"{key}: no value of any column occurs {threshold} times in train, so all tables would be empty; lower it, "
            "or give data.allow_degenerate=true"
        )
    if columns:
        yield f"{key}: no value of {_join_names(columns)} occurs {threshold} times in train, so all of them are unknown"


def _join_names(columns: Sequence[str]) -> str:
    """Return the first SHOWN_COLUMNS names as a list in a sentence, with an ellipsis for more."""
    return ", ".join(columns[:SHOWN_COLUMNS]) + (", …" if len(columns) > SHOWN_COLUMNS else "")


def constant_columns(
    job: Job, records: Sequence[ChunkRecord], vocabularies: Mapping[str, VocabularyRecord]
) -> Iterator[str]:
    """Yield columns with one value, found by the ranges of parsing or else by the vocabularies."""
    filled = [record for record in records if record.rows]
    ranged: list[str] = []
    for names, low, high in (
        (job.schema.dense, [record.dense_low for record in filled], [record.dense_high for record in filled]),
        (job.schema.single, [record.sparse_low for record in filled], [record.sparse_high for record in filled]),
    ):
        # Parsing notes ranges only for some kinds of columns; vocabularies tell of the others.
        if all(low):
            ranged += names
            # NumPy would compare integers beyond 2^63 as float64.
            columns = zip(names, zip(*low, strict=True), zip(*high, strict=True), strict=True)
            yield from (name for name, lows, highs in columns if min(lows) == max(highs))
    # With a threshold, a vocabulary lacks rare values, so it does not tell.
    if job.rules.frequency_threshold <= 1:
        for name, vocabulary in vocabularies.items():
            # At most one value for a single-value column, none for a multi-hot one, whose bags may differ in length.
            if name not in ranged and vocabulary.values <= (name in job.schema.single):
                yield name
