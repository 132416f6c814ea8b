"""Encodings by name, checks of keys, and the agreement of an existing dataset with them.

`hash` and `vocabulary` are this project's own. The others repeat well-known programs, so that their published results
can be reproduced on the same numbers.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any

import numpy as np

from common.errors import UserError
from common.keys import check_keys, refuse, shown
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
from data_prep.dataset.format import RANGE_TRANSFORMS, SPLITS, Manifest
from data_prep.dataset.multi_hot import MLPERF_SIZES, MLPERF_V2
from data_prep.dataset.options import (
    FILES,
    GENERATORS,
    GROUPS,
    DataSource,
    DenseTransform,
    Encoding,
    LabelKind,
    SplitMethod,
    VocabularyOrder,
)
from data_prep.dataset.table_spec import Table

USED_BY_GENERATORS = {"source", "path", "overwrite", "workers", "generator_settings", *GROUPS}


def validate(data: DataConfig) -> None:
    """Refuse values out of range, and keys that contradict each other."""
    check_keys(data, "data.")
    refuse(_job_faults(data))


def _job_faults(data: DataConfig) -> Iterator[str]:
    budget, chunk = parse_size(data.memory_budget, "data.memory_budget"), chunk_size(data)
    for key, size, limit in (("memory_budget", budget, MIN_MEMORY_BUDGET), ("chunk_bytes", chunk, 1)):
        if size < limit:
            yield f"data.{key}={size}: must be at least {limit}"
    if chunk > budget // CHUNKS_PER_BUDGET:
        yield (
            f"data.chunk_bytes={data.chunk_bytes}: too much for data.memory_budget={data.memory_budget}; give at most "
            f"a {CHUNKS_PER_BUDGET}th of it"
        )
    yield from split_file_faults(data)
    if data.max_ind_range is None and data.encoding is Encoding.hash:
        yield "data.encoding=hash: needs data.max_ind_range, the rows per table, e.g. 1000000"
    data.multi_hot.bags()
    if data.synthetic.rows < data.synthetic.days:
        yield f"data.synthetic.rows={data.synthetic.rows}: must be at least {data.synthetic.days}"
    if data.days is not None:
        if "{day}" not in data.remote.name:
            yield "data.days: has no effect here; it chooses days to fetch, e.g. with data.source=criteo_1tb"
        last = math.inf if data.remote.days is None else data.remote.days - 1
        if not data.days or len(set(data.days)) != len(data.days) or not 0 <= min(data.days) <= max(data.days) <= last:
            numbers = "from 0" if data.remote.days is None else f"from 0 to {last}"
            yield f"data.days={data.days}: give different days, {numbers}, e.g. [0,1,2]"


def split_file_faults(data: DataConfig) -> Iterator[str]:
    """Yield messages of files of splits that do not fit each other or other keys."""
    splits = [split for split in SPLITS if getattr(data, split) is not None]
    if not splits:
        yield from [] if data.checksums is None else ["data.checksums: has no effect without data.train; leave it out"]
        return
    if data.train is None:
        yield f"data.{splits[0]}: needs data.train, the files of the rows to train on"
    if data.raw is not None:
        yield (
            "data.raw: not together with data.train; name all files in data.raw, or each split's in data.train, "
            "data.val and data.test"
        )
    if data.source is not None:
        yield f"data.train: has no effect with data.source={data.source.value}; leave one of them out"
    # Rows can be held out of data.train for one split that has no file.
    for key, value in vars(data.split).items() if len(splits) != len(SPLITS) - 1 else ():
        remedy = "name these files in data.raw, or give data.val or data.test"
        if len(splits) == len(SPLITS):
            remedy = f"each file is of one split; give data.split.{key}=null"
        if value is not None:
            files = ", ".join(f"data.{split}" for split in splits)
            yield f"data.split.{key}={shown(value)}: has no effect with {files}; {remedy}"
    if data.encoding in (Encoding.torchrec, Encoding.torchrec_fixed):
        yield (
            f"data.encoding={data.encoding.value}: TorchRec's layout of days, which knows no given splits; use "
            "vocabulary or hash, or name the days in data.raw"
        )
    if data.dense_transform is DenseTransform.torchrec:
        yield (
            "data.dense_transform=torchrec: shifts each file by its own smallest integer, which data.val and data.test "
            "must not; use log1p, minmax or raw"
        )


def unused_group_faults(data: DataConfig) -> Iterator[str]:
    """Yield messages of keys of other sources than the configured one."""
    for key, value in given_values(data).items():
        group = key.partition(".")[0]
        if group in GROUPS and group != data.source_kind.group:
            sources = " or ".join(f"data.source={choice.value}" for choice in DataSource if choice.kind.group == group)
            yield f"data.{key}={shown(value)}: has no effect without {sources}; leave it out"


def unused_key_faults(data: DataConfig, used: set[str], reason: str) -> Iterator[str]:
    """Yield messages of keys of another source, and of keys that are not `used`; they end in `reason`."""
    yield from unused_group_faults(data)
    defaults = DataConfig()
    for key, default in vars(defaults).items():
        if key not in used and getattr(data, key) != default:
            yield f"data.{key}: has no effect {reason}; leave it out"


def raw_row_faults(data: DataConfig) -> Iterator[str]:
    """Yield messages of keys of raw rows that contradict each other or have no effect."""
    yield from unused_group_faults(data)
    if data.label is not None and data.schema != AUTO_SCHEMA:
        remedy = "give data.schema=auto, or leave it out" if data.schema is None else f"write it in {data.schema}"
        yield f"data.label={data.label}: has no effect without data.schema={AUTO_SCHEMA}; {remedy}"
    if data.keep_texts is not None and (data.schema is None or data.encoding is Encoding.hash):
        cause = "Criteo's rows, which have none" if data.schema is None else "data.encoding=hash, which keeps no values"
        yield f"data.keep_texts: has no effect with {cause}; leave it out"
    if data.schema is None:
        return
    if data.source is not None:
        yield f"data.schema={data.schema}: these rows are Criteo's; name your own in data.raw and leave out data.source"
    if data.encoding not in (None, Encoding.vocabulary, Encoding.hash):
        yield f"data.encoding={data.encoding.value}: of Criteo's rows only; use vocabulary or hash"
    if data.dense_transform in (DenseTransform.torchrec, DenseTransform.log_float32, DenseTransform.integers):
        name = data.dense_transform.value
        yield f"data.dense_transform={name}: of Criteo's rows only; use signed_log1p, minmax or raw"


def _split_faults(split: SplitConfig, method: SplitMethod) -> Iterator[str]:
    without_effect = f"has no effect with data.split.method={method.value}"
    if split.seed and not method.algorithm.is_random:
        yield f"data.split.seed: {without_effect}; leave it out"
    if split.held_out not in (None, HELD_OUT) and not method.algorithm.has_share:
        yield f"data.split.held_out: {without_effect}; use fraction, or leave it out"
    if split.column is not None and not method.algorithm.has_column:
        methods = " or ".join(
            f"data.split.method={method.value}" for method in SplitMethod if method.algorithm.has_column
        )
        yield f"data.split.column={split.column}: {without_effect}; give {methods}, or leave it out"


KAGGLE_SEED = 123  # numpy_rand_seed of facebookresearch/dlrm


@dataclass(frozen=True)
class Rules:
    """Rules by which values become ids and rows become splits.

    Attributes:
        encoding: encoding that the rules belong to.
        dense: transform of integers.
        order: order of a vocabulary's values; None: ids are value modulo max_ind_range.
        first_id: id of a vocabulary's first value.
        unknown_id: id of values outside the vocabulary.
        fitted_on_train: whether a vocabulary is fitted on train only, not on all rows.
        frequency_threshold: values with a lower count are not in the vocabulary.
        max_ind_range: maximum rows per table, or None.
        wraps: ids are taken modulo max_ind_range; otherwise values beyond it get unknown_id.
        max_categories: features with more values are dropped, or None.
        rounds_ids: train's ids are rounded to float32, as in TorchRec's shuffle.
        split: method that chooses the held-out rows; None: the user gave files for each split.
        held_out: share that the split method holds out.
        split_seed: seed of the split method.
        train_seed: seed of train's permutation by NumPy's legacy generator; None: rows keep their order.
        test_first: whether test, not val, is the first half of the held-out rows.
        negative_drop_rate: share of negatives to leave out.
        sampling_seed: seed that chooses these negatives.
        split_column: column that the split method reads, if it reads one.
    """

    encoding: Encoding
    dense: DenseTransform
    order: VocabularyOrder | None
    first_id: int = 1
    unknown_id: int = 0
    fitted_on_train: bool = True
    frequency_threshold: int = 1
    max_ind_range: int | None = None
    wraps: bool = False
    max_categories: int | None = None
    rounds_ids: bool = False
    split: SplitMethod | None = SplitMethod.fraction
    held_out: float = HELD_OUT
    split_seed: int = 0
    train_seed: int | None = None
    test_first: bool = False
    negative_drop_rate: float = 0.0
    sampling_seed: int = 0
    split_column: str | None = None

    def to_manifest(self) -> dict[str, Any]:
        """Convert to the manifest's form: plain values, the encoding as `name`, and no `split_column` if it is None."""
        entry = {key: value.value if isinstance(value, Enum) else value for key, value in asdict(self).items()}
        if self.split_column is None:
            del entry["split_column"]
        return {"name": entry.pop("encoding"), "dense_transform": entry.pop("dense"), **entry}

    @property
    def is_arranged(self) -> bool:
        """Return whether rows leave their order; otherwise shards are made of consecutive rows."""
        is_arranged = self.split is not None and self.split.algorithm.is_arranged
        return is_arranged or self.train_seed is not None or self.negative_drop_rate > 0

    @property
    def counts_while_parsing(self) -> bool:
        """Return whether values can be counted before the rows' positions are known."""
        # While parsing, train's rows are known only if rows keep their order, and dropped rows are never known.
        is_assignment_fixed = not self.is_arranged if self.fitted_on_train else not self.negative_drop_rate
        return self.order is not None and is_assignment_fixed

    @property
    def shares_unknown_id(self) -> bool:
        """Return whether the cap on a table's rows may give values of the vocabulary the id of unknown ones."""
        wraps = self.wraps and self.max_ind_range is not None
        return wraps and self.order is not None and self.frequency_threshold > 1

    @property
    def needs_statistics(self) -> bool:
        """Return whether the transform of integers needs their range."""
        return self.dense in RANGE_TRANSFORMS


_TORCHREC = Rules(
    Encoding.torchrec_fixed,
    DenseTransform.torchrec,
    VocabularyOrder.first_appearance,
    first_id=2,
    unknown_id=1,
    fitted_on_train=False,
    wraps=True,
    split=SplitMethod.last_day,
    train_seed=0,
)
RULES = {
    Encoding.vocabulary: Rules(Encoding.vocabulary, DenseTransform.log1p, VocabularyOrder.frequency),
    Encoding.hash: Rules(Encoding.hash, DenseTransform.log1p, None, wraps=True),
    Encoding.torchrec: replace(_TORCHREC, encoding=Encoding.torchrec, rounds_ids=True),
    Encoding.torchrec_fixed: _TORCHREC,
    Encoding.dlrm_kaggle: Rules(
        Encoding.dlrm_kaggle,
        DenseTransform.log_float32,
        VocabularyOrder.first_appearance,
        first_id=0,
        fitted_on_train=False,
        train_seed=KAGGLE_SEED,
        test_first=True,
    ),
    Encoding.amd_blog: Rules(
        Encoding.amd_blog,
        DenseTransform.minmax,
        VocabularyOrder.value,
        first_id=0,
        fitted_on_train=False,
        max_categories=10_000,
        split=SplitMethod.scikit_learn,
        held_out=0.2,
        split_seed=42,
    ),
}
# Keys of `data` that set a rule, and the rule's name.
KEYS_OF_RULES = {
    "dense_transform": "dense",
    "frequency_threshold": "frequency_threshold",
    "max_ind_range": "max_ind_range",
    "max_categories": "max_categories",
    "vocabulary_order": "order",
    "sampling.negative_drop_rate": "negative_drop_rate",
    "sampling.seed": "sampling_seed",
}
FIXED_SPLIT_ENCODINGS = (Encoding.dlrm_kaggle, Encoding.amd_blog)  # encodings with a fixed split
REPEATED_PROGRAMS = {
    Encoding.torchrec: "TorchRec's",
    Encoding.torchrec_fixed: "TorchRec's",
    Encoding.dlrm_kaggle: "facebookresearch/dlrm's",
    Encoding.amd_blog: "AMD's",
}


def resolve_rules(data: DataConfig, num_sources: int, table: Table | None = None) -> Rules:
    """Return the rules of an encoding with the user's settings, which are refused where they have no effect.

    Args:
        num_sources: number of raw files.
        table: description of the user's own table; None: Criteo's rows.
    """
    encoding, split, is_own = data.encoding or Encoding.vocabulary, data.split, data.schema is not None
    # A user's own table may hold any numbers, negative ones, too.
    rules = replace(RULES[encoding], dense=DenseTransform.signed_log1p) if is_own else RULES[encoding]
    given: dict[str, Any] = {name: attrgetter(key)(data) for key, name in KEYS_OF_RULES.items()}
    rules = replace(rules, **{name: value for name, value in given.items() if value is not None})
    if data.train is not None:
        # With files for splits, only train's rows decide ids, and 0 is the id of unknown values.
        rules = replace(rules, split=None, held_out=0.0, split_seed=0, test_first=False)
        rules = replace(rules, fitted_on_train=True, first_id=1, unknown_id=0)
    if rules.order is None and rules.frequency_threshold > 1:
        raise UserError(f"data.frequency_threshold: has no effect with data.encoding={encoding.value}; leave it out")
    for key, owner in (("max_categories", Encoding.amd_blog), ("vocabulary_order", Encoding.vocabulary)):
        if getattr(data, key) is not None and encoding is not owner:
            raise UserError(f"data.{key}: has no effect with data.encoding={encoding.value}")
    if encoding in FIXED_SPLIT_ENCODINGS:
        for key, value, neutral in (
            ("max_ind_range", data.max_ind_range, None),
            ("frequency_threshold", data.frequency_threshold, 1),
            ("split.method", split.method, SplitMethod.auto),
            ("split.held_out", split.held_out, HELD_OUT),
            ("split.seed", split.seed, 0),
            ("split.column", split.column, None),
        ):
            if value not in (None, neutral):
                raise UserError(f"data.{key}: data.encoding={encoding.value} does not leave it open")
        return rules
    if data.train is not None and split == SplitConfig():
        return rules
    has_time = table is not None and table.time is not None
    # The last rows of data.train's files are no days of their own, so chance is the default for Criteo's rows, too.
    method = (split.method or SplitMethod.auto).resolve(num_sources, is_own or data.train is not None, has_time)
    refuse(_split_faults(split, method))
    if data.train is not None and not method.algorithm.chooses:
        methods = ", ".join(choice.value for choice in SplitMethod if choice.algorithm.chooses)
        raise UserError(
            f"data.split.method={method.value}: holds no rows out of data.train; give one of {methods}, or name the "
            "files in data.raw"
        )
    held_out = HELD_OUT if split.held_out is None else split.held_out
    column = _split_column(data, method, table)
    return replace(rules, split=method, held_out=held_out, split_seed=split.seed or 0, split_column=column)


def _split_column(data: DataConfig, method: SplitMethod, table: Table | None) -> str | None:
    """Return the column that a split method reads, by default the schema's time column; None if it reads none."""
    reads = method.algorithm.reads
    if reads == "labels" and table is not None and table.label_kind is LabelKind.number:
        raise UserError(
            f"data.split.method={method.value}: needs labels of 0 and 1, and {table.label} has numbers (kind: number); "
            "use random"
        )
    if not method.algorithm.has_column:
        return None
    if table is None:
        raise UserError(f"data.split.method={method.value}: needs data.schema, whose columns have names; use random")
    if data.split.column is not None:
        return data.split.column
    if reads == "times" and table.time is not None:
        return table.time.column
    remedy = "give data.split.column=COLUMN"
    if reads == "times":
        remedy += f", or write time: COLUMN in {data.schema}"
    raise UserError(f"data.split.method={method.value}: {remedy}")


def report_differences(rules: Rules) -> None:
    """Print the settings that make rows differ from those of the repeated program, if any, on stderr."""
    if rules.encoding not in REPEATED_PROGRAMS:
        return
    published = RULES[rules.encoding]
    keys = {"dense_transform": "dense", "split.method": "split", "max_ind_range": "max_ind_range"}
    keys |= {"max_categories": "max_categories", "sampling.negative_drop_rate": "negative_drop_rate"}
    choices = {
        key: getattr(rules, name) for key, name in keys.items() if getattr(rules, name) != getattr(published, name)
    }
    # Without a method, the user gave files for each split.
    causes = [f"data.{key}={shown(value)}" for key, value in choices.items() if (key, value) != ("split.method", None)]
    causes += ["data.train"] if rules.split is None else []
    if causes:
        message = f"output will differ from {REPEATED_PROGRAMS[rules.encoding]} because of {', '.join(causes)}"
        print(f"data.encoding={rules.encoding.value}: {message}", file=sys.stderr)


def largest_id(rules: Rules, num_values: int | None) -> int:
    """Return a feature's largest possible id, before ids are rounded or wrapped as in TorchRec.

    Args:
        num_values: number of values in its vocabulary; None without one.
    """
    if num_values is None:
        assert rules.max_ind_range is not None
        return rules.max_ind_range - 1
    return max(rules.first_id + num_values - 1, rules.unknown_id)


def num_embeddings(rules: Rules, num_values: int | None) -> int:
    """Return the rows of a feature's table: one more than the largest possible id. Arguments as for `largest_id`."""
    largest = largest_id(rules, num_values)
    # Rounding to float32 may raise the largest id, and the table needs that row, too.
    if rules.rounds_ids:
        largest = max(largest, int(np.float32(largest)))
    rows = largest + 1
    return min(rows, rules.max_ind_range) if rules.wraps and rules.max_ind_range else rows


# Keys that decide a dataset's rows, and their names in a manifest's `encoding`.
ENCODING_NAMES = {
    "encoding": "name",
    **KEYS_OF_RULES,
    "dense_transform": "dense_transform",
    "split.method": "split",
    "split.held_out": "held_out",
    "split.seed": "split_seed",
    "split.column": "split_column",
    "chunk_bytes": "chunk_bytes",
    "keep_texts": "keep_texts",
    "multi_hot.sizes": "multi_hot.sizes",
    "multi_hot.distribution": "multi_hot.distribution",
    "multi_hot.seed": "multi_hot.seed",
}


def compared_keys(settings: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return the given keys that decide a dataset's rows; keys of generators only for the dataset's own generator."""
    groups = {key.partition(".")[0] for key in recorded_keys(manifest)} & set(GENERATORS)
    decisive = {
        key: value for key, value in settings.items() if key in ENCODING_NAMES or key.partition(".")[0] in groups
    }
    # A manifest has the sum of such files, not their place.
    return {key: value for key, value in decisive.items() if key not in FILES}


def first_difference(settings: Mapping[str, Any], manifest: Manifest) -> tuple[str, Any, Any] | None:
    """Return the first of the given keys whose plain value differs, this value and the dataset's."""
    recorded = recorded_keys(manifest)
    for key, value in compared_keys(settings, manifest).items():
        # Bring the given value to the form that the manifest records.
        expected, recorded_value = value, recorded.get(key)
        if key == "chunk_bytes":
            expected = parse_size(str(value), f"data.{key}")  # a size may be written in several ways
        elif key == "split.method" and "split" in manifest.encoding:
            table = manifest.encoding.get("table")
            is_own = table is not None or any("split" in source for source in manifest.sources)
            method = SplitMethod[value].resolve(len(manifest.sources), is_own, "time" in (table or {}))
            expected = method.value
        elif key == "multi_hot.sizes":
            sizes = list(MLPERF_SIZES if value == MLPERF_V2 else value)
            expected = sizes if max(sizes) > 1 else None  # bags of one id are no bags
        if recorded_value is None and manifest.has_given_splits and key.startswith("split."):
            recorded_value = "files given for each split"
        if expected != recorded_value:
            return key, value, recorded_value
    return None


def recorded_keys(manifest: Manifest) -> dict[str, Any]:
    """Return the keys that decided a dataset's rows, with the values in force, including resolved ones."""
    encoding = manifest.encoding
    flat = dict(encoding) | {f"multi_hot.{key}": value for key, value in (encoding.get("multi_hot") or {}).items()}
    recorded = {key: flat[name] for key, name in ENCODING_NAMES.items() if flat.get(name) is not None}
    if manifest.has_given_splits:
        recorded = {key: value for key, value in recorded.items() if not key.startswith("split.")}
    for group in GENERATORS:
        values = encoding.get(group) or manifest.extra.get(group) or {}
        recorded |= {f"{group}.{key}": value for key, value in values.items() if key != "version"}
    return recorded


def keys_in_force(manifest: Manifest) -> dict[str, Any]:
    """Return the recorded settings that reproduce the dataset."""
    recorded = recorded_keys(manifest)
    name = recorded.get("encoding")
    if name not in [encoding.value for encoding in Encoding]:  # imported or generated rows, or events
        recorded.pop("encoding", None)
    # Other encodings fix the order of ids, or the split, and refuse keys that set it.
    if name != Encoding.vocabulary.value:
        recorded.pop("vocabulary_order", None)
    if name in [encoding.value for encoding in FIXED_SPLIT_ENCODINGS]:
        recorded = {key: value for key, value in recorded.items() if not key.startswith("split.")}
    return {key: value for key, value in recorded.items() if key not in FILES}
