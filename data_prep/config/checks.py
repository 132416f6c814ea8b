"""Checks before anything is read: values out of range, and keys that would have no effect."""

import math

from common.errors import UserError
from common.keys import check_keys, shown
from data_prep.config.keys import (
    AUTO_SCHEMA,
    CHUNKS_PER_BUDGET,
    HELD_OUT,
    MIN_MEMORY_BUDGET,
    DataConfig,
    SplitConfig,
    chunk_size,
    given_values,
    parse_size,
)
from data_prep.dataset.manifest import SPLITS
from data_prep.dataset.options import GROUPS, DataSource, DenseTransform, Encoding, SplitMethod

USED_BY_GENERATORS = {"source", "path", "overwrite", "workers", "generator_settings", *GROUPS}
OF_WHOLE_DAYS = (Encoding.torchrec, Encoding.torchrec_fixed)


def validate(data: DataConfig) -> None:
    """Refuse values out of range, and incompatible keys."""
    check_keys(data, "data.")
    if data.workers is not None and data.scheduler is not None:
        raise UserError("data.workers: has no effect with data.scheduler; the cluster decides their number")
    _validate_memory(data)
    refuse_given_splits(data)
    if data.max_ind_range is None and data.encoding is Encoding.hash:
        raise UserError("data.encoding=hash: needs data.max_ind_range, the rows per table, e.g. 1000000")
    data.multi_hot.bags()
    if data.synthetic.rows < data.synthetic.days:
        raise UserError(f"data.synthetic.rows={data.synthetic.rows}: must be at least {data.synthetic.days}")
    if data.days is not None:
        if "{day}" not in data.remote.name:
            raise UserError("data.days: has no effect here; it chooses days to fetch, e.g. with data.source=criteo_1tb")
        last = math.inf if data.remote.days is None else data.remote.days - 1
        if not data.days or len(set(data.days)) != len(data.days) or not 0 <= min(data.days) <= max(data.days) <= last:
            numbers = "from 0" if data.remote.days is None else f"from 0 to {last}"
            raise UserError(f"data.days={data.days}: give different days, {numbers}, e.g. [0,1,2]")


def _validate_memory(data: DataConfig) -> None:
    budget = parse_size(data.memory_budget, "data.memory_budget")
    for key, value, limit in (("memory_budget", budget, MIN_MEMORY_BUDGET), ("chunk_bytes", chunk_size(data), 1)):
        if value < limit:
            raise UserError(f"data.{key}={value}: must be at least {limit}")
    if chunk_size(data) > budget // CHUNKS_PER_BUDGET:
        raise UserError(
            f"data.chunk_bytes={data.chunk_bytes}: too much for data.memory_budget={data.memory_budget}; give at most "
            f"a {CHUNKS_PER_BUDGET}th of it"
        )


def refuse_given_splits(data: DataConfig) -> None:
    """Raise UserError for files of splits that do not fit each other or other keys."""
    splits = [split for split in SPLITS if getattr(data, split) is not None]
    if not splits:
        if data.checksums is not None:
            raise UserError("data.checksums: has no effect without data.train; leave it out")
        return
    if data.train is None:
        raise UserError(f"data.{splits[0]}: needs data.train, the files of the rows to train on")
    if data.raw is not None:
        raise UserError(
            "data.raw: not together with data.train; name all files in data.raw, or each split's in data.train, "
            "data.val and data.test"
        )
    if data.source is not None:
        raise UserError(f"data.train: has no effect with data.source={data.source.value}; leave one of them out")
    for key, value in vars(data.split).items():
        if value is not None and len(splits) != len(SPLITS) - 1:
            remedy = "name these files in data.raw, or give data.val or data.test"
            if len(splits) == len(SPLITS):
                remedy = f"each file is of one split; give data.split.{key}=null"
            raise UserError(
                f"data.split.{key}={shown(value)}: has no effect with {', '.join(f'data.{each}' for each in splits)}; "
                f"{remedy}"
            )
    if data.encoding in OF_WHOLE_DAYS:
        raise UserError(
            f"data.encoding={data.encoding.value}: TorchRec's layout of days, which knows no given splits; use "
            "vocabulary or hash, or name the days in data.raw"
        )
    if data.dense_transform is DenseTransform.torchrec:
        raise UserError(
            "data.dense_transform=torchrec: shifts each file by its own smallest integer, which data.val and data.test "
            "must not; use log1p, minmax or raw"
        )


def refuse_keys_of_raw_rows(data: DataConfig) -> None:
    """Raise UserError for a key about the encoding of raw rows, since generators need none."""
    reason = f"with data.source={shown(data.source)}, which makes ids itself; leave it out"
    refuse_other_keys(data, USED_BY_GENERATORS, reason)


def refuse_other_keys(data: DataConfig, effective_keys: set[str], reason: str) -> None:
    """Raise UserError for a key of another source, or a key outside `effective_keys`."""
    refuse_unused_groups(data)
    usual = DataConfig()
    for key in vars(usual):
        if key not in effective_keys and getattr(data, key) != getattr(usual, key):
            raise UserError(f"data.{key}: has no effect {reason}")


def refuse_criteo_only_choices(data: DataConfig) -> None:
    """Raise UserError for a schema together with settings for Criteo's rows."""
    if data.schema is None:
        return
    if data.source is not None:
        raise UserError(
            f"data.schema={data.schema}: these rows are Criteo's; name your own in data.raw and leave out data.source"
        )
    if data.encoding not in (None, Encoding.vocabulary, Encoding.hash):
        raise UserError(f"data.encoding={data.encoding.value}: of Criteo's rows only; use vocabulary or hash")
    if data.dense_transform in (DenseTransform.torchrec, DenseTransform.log_float32, DenseTransform.integers):
        name = data.dense_transform.value
        raise UserError(f"data.dense_transform={name}: of Criteo's rows only; use signed_log1p, minmax or raw")


def refuse_unused_groups(data: DataConfig) -> None:
    """Raise UserError for a key of another source than the configured one."""
    for key, value in given_values(data).items():
        group = key.partition(".")[0]
        if group in GROUPS and group != data.source_kind.group:
            sources = " or ".join(f"data.source={each.value}" for each in DataSource if each.kind.group == group)
            raise UserError(f"data.{key}={shown(value)}: has no effect without {sources}; leave it out")


def refuse_unused_choices(data: DataConfig) -> None:
    """Raise UserError for a key without effect beside the others; see also `refuse_unused_split_keys`."""
    refuse_unused_groups(data)
    if data.label is not None and data.schema != AUTO_SCHEMA:
        remedy = "give data.schema=auto, or leave it out" if data.schema is None else f"write it in {data.schema}"
        raise UserError(f"data.label={data.label}: has no effect without data.schema={AUTO_SCHEMA}; {remedy}")
    if data.keep_texts is not None and (data.schema is None or data.encoding is Encoding.hash):
        cause = "Criteo's rows, which have none" if data.schema is None else "data.encoding=hash, which keeps no values"
        raise UserError(f"data.keep_texts: has no effect with {cause}; leave it out")


def refuse_unused_split_keys(split: SplitConfig, method: SplitMethod) -> None:
    """Raise UserError for a key without effect on the split method."""
    with_method = f"has no effect with data.split.method={method.value}"
    if split.seed and not method.algorithm.is_random:
        raise UserError(f"data.split.seed: {with_method}; leave it out")
    if split.held_out not in (None, HELD_OUT) and not method.algorithm.has_share:
        raise UserError(f"data.split.held_out: {with_method}; use fraction, or leave it out")
    if split.column is not None and not method.algorithm.has_column:
        methods = " or ".join(f"data.split.method={each.value}" for each in SplitMethod if each.algorithm.has_column)
        raise UserError(f"data.split.column={split.column}: {with_method}; give {methods}, or leave it out")
