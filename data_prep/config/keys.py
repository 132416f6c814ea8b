"""Every knob of `python -m data_prep`: its meaning, its unit, its limits."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from data_prep.config.generator_keys import LocalityConfig, RandomConfig, SyntheticConfig, TraceConfig
from data_prep.dataset.multi_hot import Distribution, MultiHot
from data_prep.dataset.options import DataSource, DenseTransform, Encoding, ExchangeFormat, SplitMethod, VocabularyOrder

MEBIBYTE = 1 << 20
UNIT_FACTORS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNIT_FACTORS |= {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
UNIT_FACTORS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

MAX_CHUNK_BYTES = 128 * MEBIBYTE  # Criteo 1TB becomes about 8,000 shards
CHUNKS_PER_BUDGET = 16
ARRANGED_FRACTION, RAGGED_FRACTION = 2, 4
MIN_MEMORY_BUDGET = 512 * MEBIBYTE
MIN_BUDGET_OF_SEVERAL = 768 * MEBIBYTE  # below, a second process and what starts it have no room
MAX_TABLE_ROWS = 2**31 - 1  # ids are int32


@dataclass
class SplitConfig:
    """Held-out rows are halved: the first half (the larger, if odd) is val, the second test, as in MLPerf.

    Attributes:
        method: see SplitMethod.
        held_out: share of rows held out by all but `last_day`; a seventh is Criteo Kaggle's last day.
        seed: of `random` and `scikit_learn`.
    """

    method: SplitMethod = SplitMethod.auto
    held_out: float = 1 / 7
    seed: int = 0


@dataclass
class SamplingConfig:
    """Leaving rows out, of all splits, before anything else is done with them.

    Attributes:
        negative_drop_rate: share of the rows with label 0 to leave out; facebookresearch/dlrm's
            data-sub-sample-rate, 0.875 in MLPerf v0.7.
        seed: of the choice.
    """

    negative_drop_rate: float = 0.0
    seed: int = 0


@dataclass
class RemoteConfig:
    """Files to fetch from mirrors.

    Attributes:
        name: of the file; {day} stands for the number of a day in data.days.
        days: how many days there are, counted from 0; None: nobody knows.
        rows: of all of it, to tell the room that it will need; None: told from the files' size.
        mirrors: where it is, the first that gives it whole; {day} as above.
        sha256: published sums: {NAME: SUM, …}, or a file of them as sha256sum writes it; of the member, too.
        member: file to take out of it, if it is a tar archive.
        directory: where the files are kept; None: <data.path>/raw.
        tries: per mirror. pause: seconds before the second, doubled before each further one. timeout: seconds
            without a byte.
    """

    name: str = ""
    days: int | None = None
    rows: int | None = None
    mirrors: list[str] = field(default_factory=list)
    sha256: Any = None
    member: str | None = None
    directory: str | None = None
    tries: int = 5
    pause: float = 2.0
    timeout: float = 60.0


@dataclass
class MultiHotConfig:
    """Ids expanded to bags, as in MLPerf v2's data (see data_prep/dataset/multi_hot.py).

    Attributes:
        sizes: ids per bag of every feature, a list, or mlperf_v2 for its own; None: one id a bag.
        distribution: of a bag's further ids; None: uniform.
        seed: of their draws; None: 0, the reference's.
    """

    sizes: Any = None
    distribution: Distribution | None = None
    seed: int | None = None


@dataclass
class DataConfig:
    """What to read, how to encode it, where to write it, and what may be used for that.

    Attributes:
        source: where the rows come from (chosen by `data=local`, `data=custom`, `data=criteo_1tb`,
            `data=criteo_kaggle`, `data=synthetic`, `data=random`, `data=trace`).
        raw: path, glob, directory of day files, or list of these; plain or .gz; in the order of the days.
        path: directory of the finished dataset.
        overwrite: replace a dataset at `path` that was made from other rows or with other parameters.
        encoding: see Encoding.
        frequency_threshold: vocabulary: values seen fewer times than this in the train split get id 0.
        max_ind_range: rows per table at most; hash: the modulus; vocabulary: the most frequent
            max_ind_range - 1 values keep ids. None: no cap.
        max_categories: amd_blog: columns of more values are dropped; None: 10,000, as the blog.
        vocabulary_order: vocabulary: see VocabularyOrder; None: by frequency.
        dense_transform: see DenseTransform; None: what belongs to the encoding.
        split: see SplitConfig.
        sampling: see SamplingConfig.
        multi_hot: see MultiHotConfig.
        scheduler: address of a Dask scheduler whose workers do the work instead of processes of this machine;
            they must see the same files. None: this machine.
        workers: processes; None: one per usable CPU, as far as memory_budget allows.
        memory_budget: bytes of memory of all processes together, e.g. 2GiB; with a scheduler, of each worker.
        chunk_bytes: uncompressed bytes of raw rows per work unit, and so per shard, at most a sixteenth of
            memory_budget; None: that, and at most 128MiB; where rows leave their order a half of that, with
            multi-valued columns a quarter.
        schema: YAML file that says how to read a table of the user's own (docs/data.md); None: Criteo's rows.
        days: numbers of the days to fetch, in this order, of those that there are.
        remote: see RemoteConfig.
        synthetic: see SyntheticConfig. random: see RandomConfig. trace: see TraceConfig.
    """

    source: DataSource = DataSource.local
    raw: Any = None
    path: str | None = None
    overwrite: bool = False
    encoding: Encoding = Encoding.vocabulary
    frequency_threshold: int = 1
    max_ind_range: int | None = None
    max_categories: int | None = None
    vocabulary_order: VocabularyOrder | None = None
    dense_transform: DenseTransform | None = None
    split: SplitConfig = field(default_factory=SplitConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    scheduler: str | None = None
    workers: int | None = None
    memory_budget: str = "2GiB"
    chunk_bytes: str | None = None
    schema: str | None = None
    days: list[int] | None = None
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    random: RandomConfig = field(default_factory=RandomConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass
class ExchangeConfig:
    """What `python -m data_prep.interchange` is to do.

    Attributes:
        to: directory to export to, or None.
        source: directory to import from, or None.
        format: of the other program's files.
        multi_hot_sizes: ids per bag of every feature; None: MLPerf v2's.
        distribution: of a bag's further ids; None: uniform.
        seed: of their draws; None: 0.
    """

    to: str | None = None
    source: str | None = None
    format: ExchangeFormat = ExchangeFormat.npy
    multi_hot_sizes: list[int] | None = None
    distribution: Distribution | None = None
    seed: int | None = None


@dataclass
class PrepConfig:
    """The configuration of `python -m data_prep` and of its other commands."""

    data: DataConfig = field(default_factory=DataConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    locality: LocalityConfig = field(default_factory=LocalityConfig)


def parse_size(text: str, key: str) -> int:
    """Bytes from text such as 2GiB, 500MB or 1048576; the suffix without "iB" or "B" is binary.

    Raises:
        UserError: not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in UNIT_FACTORS:
        raise UserError(f"{key}={text}: not a size; give bytes or e.g. 512MiB, 2GiB")
    return int(float(match[1]) * UNIT_FACTORS[match[2]])


def multi_hot_bags(data: DataConfig) -> MultiHot | None:
    """What ids are expanded to, if anything. Raises UserError for values that cannot work."""
    return MultiHot.of("data.multi_hot", data.multi_hot.sizes, data.multi_hot.distribution, data.multi_hot.seed)


def usable_cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_use_processes(data: DataConfig) -> bool:
    """Whether other processes of this machine may be wanted."""
    budget = parse_size(data.memory_budget, "data.memory_budget")
    return data.workers != 1 and data.scheduler is None and budget >= MIN_BUDGET_OF_SEVERAL


def required(key: str, value: Any) -> Any:
    """The value of a key that a command needs.

    Raises:
        UserError: none was given.
    """
    if not value:
        raise UserError(f"{key}: not given")
    return value


def dataset_path(data: DataConfig) -> Path:
    """The directory of the dataset.

    Raises:
        UserError: none was given.
    """
    if not data.path:
        raise UserError("data.path: not given; name the directory to write the dataset to")
    return Path(data.path)


def chunk_size(data: DataConfig, is_arranged: bool = False, is_ragged: bool = False) -> int:
    """Uncompressed bytes per work unit; a function of the configuration alone, never of the machine.

    Units whose rows will leave their order are held in memory whole, so they are smaller; and where columns hold any
    number of values, two bytes of text can be a value each.
    """
    if data.chunk_bytes is not None:
        return parse_size(data.chunk_bytes, "data.chunk_bytes")
    budget = parse_size(data.memory_budget, "data.memory_budget")
    chunk = min(MAX_CHUNK_BYTES, budget // CHUNKS_PER_BUDGET)
    return max(1, chunk // (RAGGED_FRACTION if is_ragged else ARRANGED_FRACTION if is_arranged else 1))
