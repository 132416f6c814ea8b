"""Every key of `python -m data_prep` and its other commands: type, default, meaning and unit.

`--help` and the table in docs/data.md are made from the `Attributes` sections here.
"""

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from common.errors import UserError
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
MIN_BUDGET_OF_SEVERAL = 768 * MEBIBYTE  # below, a second process and what starts it do not fit
MAX_TABLE_ROWS = 2**31 - 1  # ids are int32
HELD_OUT = 1 / 7  # of the rows, where data.split.held_out is not given


class IdDistribution(Enum):
    """Distributions of ids.

    uniform: evenly; zipf: id k as often as 1 / (k + 1)^exponent; pareto: Pareto-distributed numbers of shape
    `exponent`, rounded down, modulo the table's rows, as in MLPerf's multi-hot data.
    """

    uniform = "uniform"
    zipf = "zipf"
    pareto = "pareto"


@dataclass
class SplitConfig:
    """Held-out rows are halved: the first half (the larger, if odd) is val, the second test, as in MLPerf.

    Attributes:
        method: how rows are held out; null: auto, which is random for your own table, and for Criteo's rows last_day
            if there are several raw files, else fraction.
        held_out: share of the rows that all methods but last_day hold out; null: a seventh, Criteo Kaggle's last day.
        seed: of random and scikit_learn; null: 0.
    """

    method: SplitMethod | None = None
    held_out: float | None = None
    seed: int | None = None


@dataclass
class SamplingConfig:
    """Leaving rows out, of all splits, before anything else is done with them.

    Attributes:
        negative_drop_rate: share of the rows with label 0 to leave out; facebookresearch/dlrm's data-sub-sample-rate,
            0.875 in MLPerf v0.7; null: 0.
        seed: of the choice of these rows; null: 0.
    """

    negative_drop_rate: float | None = None
    seed: int | None = None


@dataclass
class RemoteConfig:
    """Files to download from mirrors.

    Attributes:
        name: name of the file; {day} stands for the number of a day in data.days.
        days: number of days there are, counted from 0; null: unknown.
        rows: total rows, to estimate disk space; null: estimated from file sizes.
        mirrors: URLs, tried in turn until one gives the whole file; {day} as in name.
        sha256: published checksums: {NAME: SUM, …}, or a file of them as sha256sum writes it; of the member, too.
        member: file to take out of it, if it is a tar archive.
        also: further files to download, {NAME: [URL, …], …}; of a log of events, its items' attributes.
        directory: where the files are kept; null: `<data.path>/raw`.
        tries: tries per mirror.
        pause: seconds before the second try, doubled before each further one.
        timeout: seconds without a byte after which a try fails.
    """

    name: str = ""
    days: int | None = None
    rows: int | None = None
    mirrors: list[str] = field(default_factory=list)
    sha256: Any = None
    member: str | None = None
    also: Any = None
    directory: str | None = None
    tries: int = 5
    pause: float = 2.0
    timeout: float = 60.0


@dataclass
class MultiHotConfig:
    """Ids expanded to bags, as in MLPerf v2's data (see data_prep/dataset/multi_hot.py).

    Attributes:
        sizes: ids per bag of every feature, a list, or mlperf_v2 for its own; null: one id a bag.
        distribution: distribution of a bag's further ids; null: uniform.
        seed: of their draws; null: 0, the reference's.
    """

    sizes: Any = None
    distribution: Distribution | None = None
    seed: int | None = None


@dataclass
class SyntheticConfig:
    """Criteo-like rows whose labels come from a known model (see data_prep/synthetic/teacher.py).

    Attributes:
        rows: rows over all days.
        days: files to write, day_0.tsv and so on, with equal shares of the rows.
        seed: decides every byte: of the columns, the model and the rows.
        click_rate: expected share of positive labels.
        max_cardinality: distinct values of the largest categorical column; the others shrink in proportion to the
            square root of Criteo Kaggle's. 10131227: Kaggle's own.
        difficulty: divides the effects of the columns on a click's logit; above 1, labels are noisier.
        interaction: factor of the interactions between columns, of pairs and of threes; 0: there are none.
        drift: angle in radians, up to pi / 2, by which effects and interactions turn from day to day; those of days d
            apart correlate by cos(drift * d).
        direct: write rows straight to shards: the same rows, but no raw files.
    """

    rows: int = 200_000
    days: int = 1
    seed: int = 0
    click_rate: float = 0.25
    max_cardinality: int = 50_000
    difficulty: float = 1.0
    interaction: float = 1.0
    drift: float = 0.1
    direct: bool = False


@dataclass
class RandomConfig:
    """Rows for pure speed: nothing can be learned from them, as labels are drawn independently of them.

    Attributes:
        rows: rows of the train split.
        eval_rows: rows of val and of test each, which are other rows than train's.
        tables: rows of every feature's table, a list; or mlperf_v2, criteo_kaggle for theirs.
        max_rows_per_table: larger tables are cut to this; null: they are not.
        num_dense: number of dense features, uniform between 0 and 1.
        distribution: distribution of the ids.
        exponent: of zipf (null: 1.05) or pareto (null: 0.25).
        bag_sizes: ids per bag, of every feature or a list; or mlperf_v2.
        bags_vary: a bag has from 1 to bag_sizes ids, each number being as likely.
        click_rate: share of positive labels.
        seed: decides every byte.
    """

    rows: int = 200_000
    eval_rows: int = 20_000
    tables: Any = "mlperf_v2"
    max_rows_per_table: int | None = None
    num_dense: int = 13
    distribution: IdDistribution = IdDistribution.uniform
    exponent: float | None = None
    bag_sizes: Any = 1
    bags_vary: bool = False
    click_rate: float = 0.25
    seed: int = 0


@dataclass
class TraceConfig:
    """Rows whose ids have the locality of a trace (see data_prep/traces/histogram.py and docs/synthetic.md).

    Attributes:
        profile: file that `python -m data_prep.profile` wrote.
        rows: rows of the train split; null: as many as the profiled trace had.
        eval_rows: rows of val and of test each, which follow after train's.
        click_rate: share of positive labels, roughly; they come from a ground-truth model as in data=synthetic.
        difficulty: as of data.synthetic.
        seed: decides every byte.
    """

    profile: str | None = None
    rows: int | None = None
    eval_rows: int = 20_000
    click_rate: float = 0.25
    difficulty: float = 1.0
    seed: int = 0


@dataclass
class SyntheticEventsConfig:
    """Events whose labels come from a known model of their user's history (see data_prep/synthetic/events.py).

    Attributes:
        users: number of users.
        days: days of the log.
        events_per_day: listens of a user and day in the mean; a listen in twenty or so is liked besides.
        items: number of items.
        stay: probability that a listen is of the genre that its user is in the mood for; else of any.
        seed: decides every byte.
    """

    users: int = 2_000
    days: int = 20
    events_per_day: float = 8.0
    items: int = 500
    stay: float = 0.9
    seed: int = 0


@dataclass
class DataConfig:
    """Input, encoding and output of preprocessing, and the resources it may use.

    A key that decides the rows is null unless it is given: only given ones are compared with a dataset that is there.

    Attributes:
        source: where the rows come from; set by data=NAME.
        raw: path, glob, directory of day files, or a list of these; plain or .gz; in the order of the days.
        path: directory of the finished dataset.
        overwrite: replace a dataset at data.path that was made from other rows or with other parameters.
        encoding: how categories become ids; null: vocabulary.
        frequency_threshold: values seen fewer times than this in the train split have no id of their own; null: 1.
        max_ind_range: maximum rows per table; hash: the modulus; vocabulary: the most frequent max_ind_range - 1
            values keep ids; null: no limit.
        max_categories: amd_blog: columns of more values are dropped; null: 10,000, as the blog.
        vocabulary_order: vocabulary: order of the ids; null: by frequency.
        dense_transform: how integers become numbers; null: the encoding's own, for your own table signed_log1p.
        scheduler: address of a Dask scheduler whose workers do the work, and must see the same files; null: processes
            of this machine.
        workers: number of processes; null: one per usable CPU, as far as memory_budget allows.
        memory_budget: memory of all processes together, at least 512MiB; with a scheduler, of each worker.
        chunk_bytes: uncompressed bytes of raw rows per chunk, and so per shard, at most a sixteenth of memory_budget;
            null: that, and at most 128MiB; half of that where rows leave their order, a quarter where columns hold
            any number of values.
        schema: YAML file that describes your own table; null: Criteo's rows.
        keep_texts: your own table with encoding=vocabulary: keep the values' texts in the dataset, so that reports can
            name them; they may be personal data; null: true.
        days: numbers of the days to download, in this order; set by data=criteo_1tb.
    """

    source: DataSource = DataSource.local
    raw: Any = None
    path: str | None = None
    overwrite: bool = False
    encoding: Encoding | None = None
    frequency_threshold: int | None = None
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
    keep_texts: bool | None = None
    days: list[int] | None = None
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    synthetic_events: SyntheticEventsConfig = field(default_factory=SyntheticEventsConfig)
    random: RandomConfig = field(default_factory=RandomConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass
class ExchangeConfig:
    """Keys of `python -m data_prep.interchange`.

    Attributes:
        to: directory to export to.
        source: directory to import from.
        format: of the other program's files.
        multi_hot_sizes: ids per bag of every feature that is exported; null: MLPerf v2's.
        distribution: distribution of a bag's further ids; null: uniform.
        seed: of their draws; null: 0.
    """

    to: str | None = None
    source: str | None = None
    format: ExchangeFormat = ExchangeFormat.npy
    multi_hot_sizes: list[int] | None = None
    distribution: Distribution | None = None
    seed: int | None = None


@dataclass
class LocalityConfig:
    """Keys of `python -m data_prep.profile`, `.generate` and `.compare`.

    Attributes:
        trace: a dataset's directory, a profile, or text files, one per table.
        other: likewise, to be compared with it.
        split: split of a dataset.
        profile: file to write (profile), or to generate from (generate).
        to: directory for generated text traces.
        accesses: accesses to generate per table; null: as many as the profiled trace had.
        seed: of what is generated.
        plot: file for the hit rates of both, an SVG.
    """

    trace: Any = None
    other: Any = None
    split: str = "train"
    profile: str | None = None
    to: str | None = None
    accesses: int | None = None
    seed: int = 0
    plot: str | None = None


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
    match = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?(?:e\+?\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in UNIT_FACTORS:
        raise UserError(f"{key}={text}: not a size; give bytes or e.g. 512MiB, 2GiB")
    return int(float(match[1]) * UNIT_FACTORS[match[2]])


def multi_hot_bags(data: DataConfig) -> MultiHot | None:
    """The bags that ids are expanded to, if any. Raises UserError for invalid values."""
    return MultiHot.of("data.multi_hot", data.multi_hot.sizes, data.multi_hot.distribution, data.multi_hot.seed)


def usable_cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_use_processes(data: DataConfig) -> bool:
    """Return whether other processes of this machine may be started."""
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
    """Uncompressed bytes per chunk; a function of the configuration alone, never of the machine.

    Chunks whose rows will leave their order are held in memory whole, so they are smaller; and where columns hold any
    number of values, two bytes of text can be a value each.
    """
    if data.chunk_bytes is not None:
        return parse_size(data.chunk_bytes, "data.chunk_bytes")
    budget = parse_size(data.memory_budget, "data.memory_budget")
    chunk = min(MAX_CHUNK_BYTES, budget // CHUNKS_PER_BUDGET)
    return max(1, chunk // (RAGGED_FRACTION if is_ragged else ARRANGED_FRACTION if is_arranged else 1))
