"""Inputs of a job: its sources (found, generated or downloaded), columns, and encoding parameters."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from common.command import load
from common.errors import UserError
from common.extensions import absence, rows_of_extensions
from common.keys import refuse
from common.machine import require_memory
from data_prep.config import AUTO_SCHEMA, DataConfig, Rules, chunk_size, raw_row_faults, resolve_rules
from data_prep.dataset.format import SPLITS
from data_prep.dataset.kinds import ROWS, DatasetKind, SchemaProposer, kind_of_schema
from data_prep.dataset.multi_hot import MultiHot
from data_prep.dataset.options import CRITEO, LabelKind, Schema, to_json
from data_prep.dataset.table_spec import Table
from data_prep.engine.job import dataset_bytes, refuse_foreign_files
from data_prep.parsing.table_yaml import drop_empty_files, load_table, schema_path
from data_prep.sources.discover import Source, own_path, resolve_sources, resolve_splits
from data_prep.sources.download import find_or_download, finished_manifest, other_dataset_error

if TYPE_CHECKING:
    from data_prep.encoding.encoder import SplitColumn

# Chunks of a user's own table are small, since all workers hold the distinct texts of a chunk in memory.
MIN_OWN_CHUNK_BYTES, MAX_OWN_CHUNK_BYTES = 1 << 20, 8 << 20


def refuse_early(data: DataConfig, root: Path) -> None:
    """Refuse incompatible settings before anything is downloaded or generated."""
    require_memory("preprocessing")
    refuse(raw_row_faults(data))
    if data.source_kind.makes is not None:  # otherwise a schema may have to be read first
        choose_bags(data, resolve_rules(data, max(data.synthetic.days, len(data.days or []))), CRITEO)
    for key in ("raw", *SPLITS):
        value = getattr(data, key)
        entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if any(own_path(str(entry)).resolve() == root.resolve() for entry in entries if isinstance(entry, (str, Path))):
            raise UserError(f"data.{key}={value}: is data.path too; give the dataset a directory of its own")


def kind_to_make(data: DataConfig) -> DatasetKind:
    """Return the kind of dataset to make, which the source or else the schema decides."""
    if data.source_kind.makes is not None or data.schema in (None, AUTO_SCHEMA):
        return data.source_kind.makes or ROWS
    try:
        return kind_of_schema(yaml.safe_load(schema_path(data.schema).read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return ROWS  # the reader of rows reports the error


def describe_table(data: DataConfig, root: Path, sources: tuple[Source, ...]) -> Table | None:
    """Return the description of the user's own table by data.schema; None for Criteo's rows.

    With data.schema=auto it is the one that an existing dataset was made with, or else a proposal.
    """
    if data.schema is None:
        return None
    if data.schema != AUTO_SCHEMA:
        return load_table(schema_path(data.schema), sources)
    manifest = finished_manifest(data, root)
    entry = None if manifest is None else manifest.encoding.get("table")
    if entry is not None:
        table = msgspec.convert(entry, Table)
        recorded = f"{table.label} {table.rule or ''}".rstrip()
        if data.label not in (None, table.label, recorded):
            raise other_dataset_error(root, f"the label is {recorded} there, {data.label} here")
        return table
    proposers = rows_of_extensions(SchemaProposer)
    if not proposers:
        raise UserError(
            f"data.schema={AUTO_SCHEMA}: {absence('inspect')}; restore it, or write a schema (docs/inspect.md)"
        )
    text = proposers[0].propose([source for source in sources if source.split in (None, "train")], data.label)
    table = load_table(Path(f"data.schema={AUTO_SCHEMA}"), sources, text)
    label = f"{table.label} {table.rule or ''}".rstrip()
    lists = f"dense: {', '.join(table.dense) or 'none'}; sparse: {', '.join(table.sparse) or 'none'}"
    print(f"data.schema={AUTO_SCHEMA}: label: {label}; {lists}; python -m data_prep.inspect says why", file=sys.stderr)
    return table


def find_sources(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return the sources to read; make or download them if needed, after checking that `root` is free for them."""
    source = data.source_kind
    if source.find:
        # Checked before anything is generated or downloaded, since a command that refuses changes no file.
        refuse_foreign_files(root, work, [load(source.directory)(data, root) / "raw"])
        sources: list[Source] = load(source.find)(data, root, work)
    elif data.train is not None:
        sources = resolve_splits({split: getattr(data, split) for split in SPLITS})
    else:
        sources = resolve_sources(data.raw)
    if data.schema is not None and not source.find:
        sources = drop_empty_files(sources)
    # A cluster's workers may have other working directories.
    if data.scheduler is not None:
        return [replace(source, path=str(Path(source.path).absolute())) for source in sources]
    return sources


def fetch_days(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return Criteo's raw files where they are, or download them from mirrors."""
    rules = resolve_rules(data, len(data.days or [0]))
    required_bytes = partial(dataset_bytes, schema=CRITEO, rules=rules, bags=choose_bags(data, rules, CRITEO))
    return find_or_download(data, root, required_bytes)


def require_droppable(data: DataConfig, schema: Schema) -> None:
    """Raise UserError if rows of label 0 are to be dropped of a table whose figures cannot be corrected for it."""
    rate = data.sampling.negative_drop_rate
    if rate is not None and schema.label_kind is LabelKind.number:
        raise UserError(
            f"data.sampling.negative_drop_rate={rate}: drops rows of label 0, and the labels of {data.schema} are "
            "numbers (kind: number); leave it out"
        )
    if rate is not None and schema.weight:
        raise UserError(
            f"data.sampling.negative_drop_rate={rate}: corrects figures for rows that it drops, which is not defined "
            f"for the sample weights of {data.schema} (weight: {schema.weight}); leave one of them out"
        )


def choose_bags(data: DataConfig, rules: Rules, schema: Schema) -> MultiHot | None:
    """Return the bags that ids are expanded to, None if each is its id. Raise UserError if they do not fit."""
    bags = data.multi_hot.bags()
    if bags is None or max(bags.sizes) == 1:
        return None
    if rules.max_categories is not None:
        raise UserError(f"data.multi_hot: not with data.encoding={rules.encoding.value}, which drops columns")
    if schema.ragged:
        raise UserError(f"data.multi_hot: column {schema.ragged[0]} holds any number of values already; leave it out")
    bags.check(len(schema.sparse))
    return bags


def split_column(rules: Rules, table: Table | None, sources: Sequence[Source]) -> "SplitColumn | None":
    """Return the column that decides the split of each row, or None. Raise UserError if it cannot."""
    if rules.split_column is None:
        return None
    from data_prep.encoding.encoder import find_split_column  # imports pyarrow, which Criteo's rows do not need

    assert rules.split is not None
    assert table is not None
    return find_split_column(rules.split_column, rules.split.algorithm.reads == "times", table, sources)


def divide_shard(shard_bytes: int, is_own: bool) -> tuple[int, int]:
    """Return the bytes of raw rows per chunk and the chunks per shard; a user's own table gets small chunks.

    Args:
        shard_bytes: the manifest's `chunk_bytes`; is_own: whether rows come from a user's own table.
    """
    chunk = max(MIN_OWN_CHUNK_BYTES, min(shard_bytes // 4, MAX_OWN_CHUNK_BYTES)) if is_own else shard_bytes
    count = -(-shard_bytes // chunk)
    # Chunks of equal size leave no small rest at the end of a shard.
    return -(-shard_bytes // count), count


def encoding_parameters(
    data: DataConfig, rules: Rules, table: Table | None = None, bags: MultiHot | None = None
) -> dict[str, Any]:
    """Return the manifest's `encoding`: the parameters that, with the rows, decide the shards' bytes."""
    # A dataset that has no such setting has no key for it. Hashing keeps no values, so also no texts.
    return {
        **rules.to_manifest(),
        "chunk_bytes": chunk_size(data, rules.is_arranged, table is not None and bool(table.schema.ragged)),
        "table": None if table is None else to_json(table),
        **({} if table is None or rules.order is None else {"keep_texts": data.keep_texts is not False}),
        **({} if bags is None else {"multi_hot": to_json(bags)}),
    }
