"""All keys of `python -m data_prep`: meanings, limits, checks of combinations, and the encodings by name.

`--help` is generated from these declarations. `hash` and `vocabulary` are this project's own encodings; the others
repeat well-known programs, so that their published results can be reproduced on the same numbers.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml
from msgspec import UNSET
from msgspec.structs import replace

from common.errors import UserError
from common.extensions import add_key_groups, directories_of_values
from common.keys import MISSING, check_keys, flat_values, key, refuse, shown
from data_prep.dataset.format import SPLITS, Manifest, Rules
from data_prep.dataset.kinds import SourceKind
from data_prep.dataset.options import (
    FILES,
    GENERATORS,
    GROUPS,
    OWN_FILES,
    DataSource,
    DenseTransform,
    Encoding,
    LabelKind,
    SplitMethod,
    Table,
    VocabularyOrder,
)

# `python -m data_prep` with only this argument reads a pickled PrepConfig from standard input.
PICKLED = "--pickled"
CONFIG_DIRECTORY = Path(__file__).parent / "conf"


def implied_values(data: Any, source: DataSource | None, given: Sequence[str]) -> dict[str, Any]:
    """Return, by dotted key, the values that a source implies, and `data.generator_settings`: given keys of generators.

    data: the composed values of `data`. given: dotted keys from the command line and from files.
    """
    keys = [key.removeprefix("data.") for key in given if key.startswith(tuple(f"data.{name}." for name in GENERATORS))]
    values = {"generator_settings": list(dict.fromkeys(keys))} if keys else {}
    if source is not None:
        paths = [path / "sources" / f"{source.value}.yaml" for path in directories_of_values(CONFIG_DIRECTORY)]
        ready = yaml.safe_load(next(path for path in paths if path.exists()).read_text(encoding="utf-8"))
        # Given keys win; those below `remote` are merged one by one when the groups are composed.
        values |= {key: value for key, value in ready.items() if key == "remote" or getattr(data, key) is None}
    return {f"data.{key}": value for key, value in values.items()}


MEBIBYTE = 1 << 20
UNIT_FACTORS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNIT_FACTORS |= {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
UNIT_FACTORS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

MAX_CHUNK_BYTES = 128 * MEBIBYTE  # Criteo 1TB becomes about 8,000 shards
CHUNKS_PER_BUDGET = 16  # that data.memory_budget has room for, at the least
ARRANGED_FRACTION, RAGGED_FRACTION = 2, 4  # divisors of a chunk's bytes: of reordered rows, of multi-hot columns
MIN_MEMORY_BUDGET = 512 * MEBIBYTE
MIN_BUDGET_OF_SEVERAL = 768 * MEBIBYTE  # below this, a second process and the fork server do not fit
MAX_TABLE_ROWS = 2**31 - 1  # ids are int32
SEEDS = f"[0, {2**32})"
AUTO_SCHEMA = "auto"  # value of data.schema: the schema is proposed
HELD_OUT = 1 / 7  # share of the rows if data.split.held_out is not given


class IdDistribution(Enum):
    """Distributions of ids.

    uniform: all alike; zipf: id k in proportion to 1 / (k + 1)^exponent; pareto: Pareto-distributed numbers with shape
    `exponent`, rounded down, modulo the table's rows, as in MLPerf's multi-hot data.
    """

    uniform, zipf, pareto = "uniform", "zipf", "pareto"


@dataclass(frozen=True)
class SplitConfig:
    """Split of the rows. The first half of the held-out rows (the larger, if odd) is val, the second test: MLPerf's.

    With data.train the user gives files for each split. These keys then hold one missing split out of data.train.
    """

    method: SplitMethod | None = key(
        None,
        "how rows are held out; null: auto, which is time for your own table if its schema names a time column, else "
        "random, and for Criteo's rows last_day if there are several raw files, else fraction",
        is_common=True,
    )
    held_out: float | None = key(
        None,
        "share of the rows that all methods but last_day hold out; null: a seventh, Criteo Kaggle's last day",
        within="[0, 1)",
        is_common=True,
    )
    seed: int | None = key(
        None, "seed of random, group, stratified and scikit_learn; null: 0", within=SEEDS, is_common=True
    )
    column: str | None = key(
        None,
        "column of your own table that decides: for time the time of each row (null: the schema's time column), for "
        "group a value whose rows stay together, such as a user",
        is_common=True,
    )


@dataclass(frozen=True)
class SamplingConfig:
    """Rows to leave out of all splits before any other step."""

    negative_drop_rate: float | None = key(
        None,
        "share of the rows with label 0 to leave out; facebookresearch/dlrm's data-sub-sample-rate, 0.875 in MLPerf "
        "v0.7; null: 0",
        within="[0, 1]",
    )
    seed: int | None = key(
        None, "seed of the choice of these rows; null: 0", within=SEEDS, only_with="negative_drop_rate"
    )


@dataclass(frozen=True)
class RemoteConfig:
    """Files to download from mirrors."""

    name: str = key("", "name of the file; {day} stands for the number of a day in data.days")
    days: int | None = key(None, "number of available days, counted from 0; null: unknown")
    rows: int | None = key(None, "total rows, to estimate disk space; null: estimated from file sizes")
    mirrors: list[str] = key([], "URLs, tried in turn until one gives the whole file; {day} as in name")
    sha256: Any = key(None, "published checksums, also of the member: {NAME: SUM, …}")
    member: str | None = key(None, "file to extract if the download is a tar archive")
    also: Any = key(None, "further files to download, {NAME: [URL, …], …}; for a log of events its items' attributes")
    directory: str | None = key(None, "directory of the files; null: `<data.path>/raw`")
    tries: int = key(5, "tries per mirror", at_least=1)
    pause: float = key(2.0, "seconds before the second try, doubled before each further one", within="[0, inf)")
    timeout: float = key(60.0, "seconds without a byte after which a try fails", above=0)


@dataclass(frozen=True)
class SyntheticConfig:
    """Criteo-like rows whose labels come from a known model (see data_prep/synthetic.py)."""

    rows: int = key(200_000, "rows over all days", at_least=1)
    days: int = key(1, "files to write, day_0.tsv and so on, with equal shares of the rows", at_least=1)
    seed: int = key(0, "seed that decides every byte of the columns, the model and the rows", at_least=0)
    click_rate: float = key(0.25, "expected share of positive labels", within="(0, 1)")
    max_cardinality: int = key(
        50_000,
        "distinct values of the largest categorical column; the others shrink in proportion to the square root of "
        "Criteo Kaggle's. 10131227: Kaggle's own",
        at_least=3,
    )
    difficulty: float = key(
        1.0, "divides the effects of the columns on a click's logit; above 1, labels are noisier", within="[0.1, inf)"
    )
    interaction: float = key(
        1.0, "factor of the interactions between pairs and triples of columns; 0: no interactions", within="[0, 10]"
    )
    drift: float = key(
        0.1,
        "angle in radians, up to pi / 2, by which effects and interactions turn from day to day; those of days d "
        "apart correlate by cos(drift * d)",
        within=f"[0, {math.pi / 2}]",
    )


@dataclass(frozen=True)
class RandomConfig:
    """Rows for measurements of speed. Labels are drawn independently of the features, so nothing can be learned."""

    rows: int = key(200_000, "rows of the train split", at_least=1)
    eval_rows: int = key(20_000, "rows of val and of test each; they differ from train's", at_least=0)
    tables: Any = key("mlperf_v2", "list of the rows of each feature's table, or mlperf_v2 or criteo_kaggle")
    max_rows_per_table: int | None = key(None, "maximum rows of a table; null: no limit", at_least=1)
    num_dense: int = key(13, "number of dense features, uniform between 0 and 1", at_least=0)
    distribution: IdDistribution = key(IdDistribution.uniform, "distribution of the ids")
    exponent: float | None = key(
        None,
        "exponent of zipf (null: 1.05) or pareto (null: 0.25)",
        within="(0, 100)",
        only_with={"distribution": (IdDistribution.zipf, IdDistribution.pareto)},
    )
    bag_sizes: Any = key(1, "ids per bag: one number for all features, a list, or mlperf_v2")
    bags_vary: bool = key(False, "each bag has from 1 to bag_sizes ids, all numbers equally likely")
    click_rate: float = key(0.25, "share of positive labels", within="[0, 1]")
    seed: int = key(0, "decides every byte", at_least=0)


@add_key_groups
@dataclass(frozen=True)
class DataConfig:
    """Input, encoding and output of preprocessing, and the resources it may use.

    Keys that decide the rows default to null. Only keys that the user gives are compared with an existing dataset.
    """

    source: DataSource | None = key(
        None,
        "generate or download the rows, with the ready-made values of data_prep/conf/sources/NAME.yaml; null: files of "
        "your own",
        is_common=True,
    )
    raw: Any = key(
        None,
        "path, glob, directory of day files, or a list of these, plain or compressed (.gz, .bz2, .zst); in the "
        "order of the days",
        is_common=True,
    )
    train: Any = key(
        None,
        "instead of data.raw: files of the train split, given in the same way; only their rows decide "
        "vocabularies and transforms",
        is_common=True,
    )
    val: Any = key(
        None,
        "with data.train: files of the val split; null: no rows, or those that data.split holds out",
        is_common=True,
    )
    test: Any = key(
        None,
        "with data.train: files of the test split; null: no rows, or those that data.split holds out",
        is_common=True,
    )
    checksums: Any = key(
        None, "required MD5 of files of data.train, data.val and data.test: {NAME: MD5, …}, by name or path"
    )
    path: str | None = key(None, "directory of the finished dataset", is_common=True)
    overwrite: bool = key(
        False, "replace a dataset at data.path that was made from other rows or with other parameters", is_common=True
    )
    encoding: Encoding | None = key(None, "how categories become ids; null: vocabulary", is_common=True)
    frequency_threshold: int | None = key(
        None,
        "values seen fewer times than this in the train split have no id of their own; null: 1",
        at_least=0,
        is_common=True,
    )
    max_ind_range: int | None = key(
        None,
        "maximum rows per table; hash: the modulus; vocabulary: the most frequent max_ind_range - 1 values keep "
        "ids; null: no limit",
        within=f"[1, {MAX_TABLE_ROWS}]",
        is_common=True,
    )
    max_categories: int | None = key(
        None,
        "columns with more values are dropped; null: 10,000, as in AMD's blog",
        at_least=1,
        only_with={"encoding": Encoding.amd_blog},
    )
    vocabulary_order: VocabularyOrder | None = key(
        None, "order of the ids; null: by frequency", only_with={"encoding": (Encoding.vocabulary, None)}
    )
    dense_transform: DenseTransform | None = key(
        None,
        "how integers become numbers; null: the encoding's own, for your own table signed_log1p. A transform of a "
        "column in data.schema takes its place",
    )
    split: SplitConfig = field(default_factory=SplitConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    scheduler: str | None = key(
        None,
        "address of a Dask scheduler; its workers do the work and must see the same files; null: processes of "
        "this machine",
    )
    workers: int | None = key(
        None,
        "number of processes; null: one per usable CPU, as far as memory_budget allows",
        at_least=1,
        only_with={"scheduler": None},
        is_common=True,
    )
    memory_budget: str = key(
        "2GiB", "memory of all processes together, at least 512MiB; with a scheduler, of each worker", is_common=True
    )
    chunk_bytes: str | None = key(
        None,
        "uncompressed bytes of raw rows per chunk, and thus per shard, at most a sixteenth of memory_budget; "
        "null: a sixteenth, at most 128MiB; half of it if rows are reordered, a quarter with multi-hot columns",
    )
    schema: str | None = key(
        None,
        "YAML file that describes your own table, or auto: the schema that data_prep.inspect proposes; null: Criteo's "
        "rows",
        is_common=True,
    )
    label: str | None = key(
        None,
        "with data.schema=auto: column of the labels, or a rule such as rating >= 4; null: the column named label, "
        "click, clicked, target, y or rating",
    )
    keep_texts: bool | None = key(
        None,
        "your own table with encoding=vocabulary: keep the values' texts in the dataset, so that data_prep.verify "
        "and others can name them; they may be personal data; null: true",
    )
    allow_degenerate: bool = key(
        False, "make, or train on, data that teach a model nothing: labels of one class, tables without values"
    )
    days: list[int] | None = key(
        None, "numbers of the days to download, in this order; data.source=criteo_1tb: all unless given", is_common=True
    )
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    random: RandomConfig = field(default_factory=RandomConfig)
    generator_settings: list[str] = key(
        [], "given keys of generators, such as random.rows, as opposed to defaults; the command sets it"
    )

    @property
    def source_kind(self) -> SourceKind:
        """Return the properties of data.source, or of the user's own files if it is not given."""
        return OWN_FILES if self.source is None else self.source.kind

    @property
    def root(self) -> Path:
        """Return the directory of the dataset. Raise UserError if data.path is not given."""
        if not self.path:
            raise UserError("data.path: not given; name the directory of the dataset")
        return Path(self.path)


@dataclass(frozen=True)
class PrepConfig:
    """Configuration of `python -m data_prep` and its other commands."""

    data: DataConfig = field(default_factory=DataConfig)

    implied: ClassVar[tuple[Any, ...]] = (
        lambda composed, given: implied_values(composed.data, composed.data.source, given),
    )


def given_values(data: DataConfig) -> dict[str, Any]:
    """Return the keys that the user or a recipe gave: given keys of generators, others that are not at the default."""
    # A generator's key counts even with its default's value: only the command knows which of them were given.
    defaults, values = flat_values(DataConfig()), flat_values(data)
    return {
        name: values[name]
        for name, default in defaults.items()
        if name != "generator_settings"
        and values[name] is not None
        and (name in data.generator_settings if name.partition(".")[0] in GENERATORS else values[name] != default)
    }


def parse_size(text: str, key: str) -> int:
    """Parse a size such as 2GiB, 500MB or 1048576 to bytes; a suffix without "iB" or "B" is binary."""
    match = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?(?:e\+?\d+)?)\s*([a-z]*)\s*", text.lower())
    size = float(match[1]) * UNIT_FACTORS.get(match[2], math.nan) if match else math.nan
    # Written so, the comparison refuses NaN, too.
    if not size < 2**63:
        raise UserError(f"{key}={text}: not a size; give bytes or e.g. 512MiB, 2GiB")
    return int(size)


def may_use_processes(data: DataConfig) -> bool:
    """Return whether the job may start worker processes on this machine, by its workers, scheduler and memory."""
    budget = parse_size(data.memory_budget, "data.memory_budget")
    return data.workers != 1 and data.scheduler is None and budget >= MIN_BUDGET_OF_SEVERAL


def chunk_size(data: DataConfig, is_arranged: bool = False, is_ragged: bool = False) -> int:
    """Return the uncompressed bytes per chunk, which depend on the configuration alone, never on the machine.

    If rows are reordered, whole chunks are held in memory, so they are smaller. With multi-hot columns they are smaller
    still, since each value may take only two bytes of text.
    """
    if data.chunk_bytes is not None:
        return parse_size(data.chunk_bytes, "data.chunk_bytes")
    budget = parse_size(data.memory_budget, "data.memory_budget")
    chunk = min(MAX_CHUNK_BYTES, budget // CHUNKS_PER_BUDGET)
    return max(1, chunk // (RAGGED_FRACTION if is_ragged else ARRANGED_FRACTION if is_arranged else 1))


class PublishedName(Enum):
    """Small public datasets with the split of a paper (data_prep/published.py)."""

    kgcn_lastfm = "kgcn_lastfm"
    ncf_movielens_1m = "ncf_movielens_1m"
    tfrs_movielens_100k = "tfrs_movielens_100k"


@dataclass(frozen=True)
class PublishedDataConfig:
    """The published set, and its directories."""

    name: PublishedName = key(MISSING, "name of the dataset")
    out: str | None = key(None, "directory of the splits, train.csv and so on; null: data/NAME")
    raw: str | None = key(None, "directory that holds its files, or to which they are downloaded; null: OUT/raw")


USED_BY_GENERATORS = {"source", "path", "overwrite", "workers", "generator_settings", *GROUPS}


def validate(data: DataConfig) -> None:
    """Refuse values out of range, and keys that contradict each other."""
    check_keys(data, "data.")
    refuse(_job_faults(data))


def _job_faults(data: DataConfig) -> Iterator[str]:
    """Yield messages of keys that do not fit each other whatever the rows are; raise UserError for invalid sizes."""
    budget, chunk = parse_size(data.memory_budget, "data.memory_budget"), chunk_size(data)
    for name, size, limit in (("memory_budget", budget, MIN_MEMORY_BUDGET), ("chunk_bytes", chunk, 1)):
        if size < limit:
            yield f"data.{name}={size}: must be at least {limit}"
    if chunk > budget // CHUNKS_PER_BUDGET:
        yield (
            f"data.chunk_bytes={data.chunk_bytes}: too much for data.memory_budget={data.memory_budget}; give at most "
            f"a {CHUNKS_PER_BUDGET}th of it"
        )
    yield from split_file_faults(data)
    if data.max_ind_range is None and data.encoding is Encoding.hash:
        yield "data.encoding=hash: needs data.max_ind_range, the rows per table, e.g. 1000000"
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
    for name, value in vars(data.split).items() if len(splits) != len(SPLITS) - 1 else ():
        remedy = "name these files in data.raw, or give data.val or data.test"
        if len(splits) == len(SPLITS):
            remedy = f"each file is of one split; give data.split.{name}=null"
        if value is not None:
            files = ", ".join(f"data.{split}" for split in splits)
            yield f"data.split.{name}={shown(value)}: has no effect with {files}; {remedy}"
    for name in ("encoding", "dense_transform"):
        if (value := getattr(data, name)) in (Encoding.torchrec, Encoding.torchrec_fixed, DenseTransform.torchrec):
            rule = "TorchRec's layout of days, which knows no given splits"
            yield f"data.{name}={value.value}: {rule}; use another, or name the days in data.raw"


def unused_group_faults(data: DataConfig) -> Iterator[str]:
    """Yield messages of given keys in groups of sources other than data.source, which nothing would read."""
    for name, value in given_values(data).items():
        group = name.partition(".")[0]
        if group in GROUPS and group != data.source_kind.group:
            sources = " or ".join(f"data.source={choice.value}" for choice in DataSource if choice.kind.group == group)
            yield f"data.{name}={shown(value)}: has no effect without {sources}; leave it out"


def unused_key_faults(data: DataConfig, used: set[str], reason: str) -> Iterator[str]:
    """Yield messages of keys of another source, and of keys that are not `used`; they end in `reason`."""
    yield from unused_group_faults(data)
    defaults = DataConfig()
    for name, default in vars(defaults).items():
        if name not in used and getattr(data, name) != default:
            yield f"data.{name}: has no effect {reason}; leave it out"


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
    """Yield messages of keys of data.split that the method does not read. Values that mean the default are accepted."""
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


_VOCABULARY = Rules(
    name=Encoding.vocabulary,
    dense_transform=DenseTransform.log1p,
    order=VocabularyOrder.frequency,
    first_id=1,
    unknown_id=0,
    fitted_on_train=True,
    frequency_threshold=1,
    max_ind_range=None,
    wraps=False,
    max_categories=None,
    rounds_ids=False,
    split=SplitMethod.fraction,
    held_out=HELD_OUT,
    split_seed=0,
    train_seed=None,
    test_first=False,
    negative_drop_rate=0.0,
    sampling_seed=0,
)
_TORCHREC = replace(
    _VOCABULARY,
    name=Encoding.torchrec_fixed,
    dense_transform=DenseTransform.torchrec,
    order=VocabularyOrder.first_appearance,
    first_id=2,
    unknown_id=1,
    fitted_on_train=False,
    wraps=True,
    split=SplitMethod.last_day,
    train_seed=0,
)
RULES = {
    Encoding.vocabulary: _VOCABULARY,
    Encoding.hash: replace(_VOCABULARY, name=Encoding.hash, order=None, wraps=True),
    Encoding.torchrec: replace(_TORCHREC, name=Encoding.torchrec, rounds_ids=True),
    Encoding.torchrec_fixed: _TORCHREC,
    Encoding.dlrm_kaggle: replace(
        _VOCABULARY,
        name=Encoding.dlrm_kaggle,
        dense_transform=DenseTransform.log_float32,
        order=VocabularyOrder.first_appearance,
        first_id=0,
        fitted_on_train=False,
        train_seed=KAGGLE_SEED,
        test_first=True,
    ),
    Encoding.amd_blog: replace(
        _VOCABULARY,
        name=Encoding.amd_blog,
        dense_transform=DenseTransform.minmax,
        order=VocabularyOrder.value,
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
    "dense_transform": "dense_transform",
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

    num_sources: number of raw files. table: description of the user's own table; None: Criteo's rows.
    """
    encoding, split, is_own = data.encoding or Encoding.vocabulary, data.split, data.schema is not None
    # A user's own table may hold any numbers, negative ones, too.
    rules = replace(RULES[encoding], dense_transform=DenseTransform.signed_log1p) if is_own else RULES[encoding]
    given: dict[str, Any] = {name: attrgetter(key)(data) for key, name in KEYS_OF_RULES.items()}
    rules = replace(rules, **{name: value for name, value in given.items() if value is not None})
    if data.train is not None:
        # With files for splits, only train's rows decide ids, and 0 is the id of unknown values.
        rules = replace(rules, split=None, held_out=0.0, split_seed=0, test_first=False)
        rules = replace(rules, fitted_on_train=True, first_id=1, unknown_id=0)
    if rules.order is None and rules.frequency_threshold > 1:
        raise UserError(f"data.frequency_threshold: has no effect with data.encoding={encoding.value}; leave it out")
    if encoding in FIXED_SPLIT_ENCODINGS:
        for name, value, neutral in (
            ("max_ind_range", data.max_ind_range, None),
            ("frequency_threshold", data.frequency_threshold, 1),
            ("split.method", split.method, SplitMethod.auto),
            ("split.held_out", split.held_out, HELD_OUT),
            ("split.seed", split.seed, 0),
            ("split.column", split.column, None),
        ):
            if value not in (None, neutral):
                raise UserError(f"data.{name}: data.encoding={encoding.value} does not leave it open")
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
    column = _split_column(data, method, table) or UNSET
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
    """Print on stderr any settings by which rows will differ from those of the program that the encoding repeats."""
    if rules.name not in REPEATED_PROGRAMS:
        return
    published = RULES[rules.name]
    keys = {"dense_transform": "dense_transform", "split.method": "split", "max_ind_range": "max_ind_range"}
    keys |= {"max_categories": "max_categories", "sampling.negative_drop_rate": "negative_drop_rate"}
    choices = {
        key: getattr(rules, name) for key, name in keys.items() if getattr(rules, name) != getattr(published, name)
    }
    # Without a method, the user gave files for each split.
    causes = [f"data.{key}={shown(value)}" for key, value in choices.items() if (key, value) != ("split.method", None)]
    causes += ["data.train"] if rules.split is None else []
    if causes:
        message = f"output will differ from {REPEATED_PROGRAMS[rules.name]} because of {', '.join(causes)}"
        print(f"data.encoding={rules.name.value}: {message}", file=sys.stderr)


def largest_id(rules: Rules, num_values: int | None) -> int:
    """Return a feature's largest possible id, before `torchrec_ids` rounds or wraps ids.

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
    "split.method": "split",
    "split.held_out": "held_out",
    "split.seed": "split_seed",
    "split.column": "split_column",
    "chunk_bytes": "chunk_bytes",
    "keep_texts": "keep_texts",
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
    """Return the first of the given keys whose plain value differs, this value and the dataset's; None if none does."""
    recorded = recorded_keys(manifest)
    for name, value in compared_keys(settings, manifest).items():
        # Bring the given value to the form that the manifest records.
        expected, recorded_value = value, recorded.get(name)
        if name == "chunk_bytes":
            expected = parse_size(str(value), f"data.{name}")  # a size may be written in several ways
        elif name == "split.method" and "split" in manifest.encoding:
            table = manifest.encoding.get("table")
            is_own = table is not None or any("split" in source for source in manifest.sources)
            method = SplitMethod[value].resolve(len(manifest.sources), is_own, "time" in (table or {}))
            expected = method.value
        if recorded_value is None and manifest.has_given_splits and name.startswith("split."):
            recorded_value = "files given for each split"
        if expected != recorded_value:
            return name, value, recorded_value
    return None


def recorded_keys(manifest: Manifest) -> dict[str, Any]:
    """Return the keys that decided a dataset's rows, with the values in force, including resolved ones."""
    encoding = manifest.encoding
    recorded = {key: encoding[name] for key, name in ENCODING_NAMES.items() if encoding.get(name) is not None}
    if manifest.has_given_splits:
        recorded = {key: value for key, value in recorded.items() if not key.startswith("split.")}
    for group in GENERATORS:
        values = encoding.get(group) or manifest.extra.get(group) or {}
        recorded |= {f"{group}.{key}": value for key, value in values.items() if key != "version"}
    return recorded


def keys_in_force(manifest: Manifest) -> dict[str, Any]:
    """Return the recorded settings that reproduce the dataset as given keys: none that its encoding refuses."""
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
