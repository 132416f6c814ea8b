"""Keys of preparation, and their composition.

`--help` is generated from these declarations.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import yaml

from common.errors import UserError
from common.extensions import add_key_groups, directories_of_values
from common.keys import MISSING, flat_values, key
from data_prep.dataset.kinds import SourceKind
from data_prep.dataset.multi_hot import Distribution, MultiHot
from data_prep.dataset.options import (
    GENERATORS,
    OWN_FILES,
    DataSource,
    DenseTransform,
    Encoding,
    SplitMethod,
    VocabularyOrder,
)

# `python -m data_prep` with only this argument reads a pickled PrepConfig from standard input.
PICKLED = "--pickled"
CONFIG_DIRECTORY = Path(__file__).parents[1] / "conf"


def implied_values(data: Any, source: DataSource | None, given: Sequence[str]) -> dict[str, Any]:
    """Return, by dotted key, the values that a source implies, and `data.generator_settings`: given keys of generators.

    Args:
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
CHUNKS_PER_BUDGET = 16
ARRANGED_FRACTION, RAGGED_FRACTION = 2, 4
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
    sha256: Any = key(None, "published checksums, also of the member: {NAME: SUM, …}, or a file as sha256sum writes it")
    member: str | None = key(None, "file to extract if the download is a tar archive")
    also: Any = key(None, "further files to download, {NAME: [URL, …], …}; for a log of events its items' attributes")
    directory: str | None = key(None, "directory of the files; null: `<data.path>/raw`")
    tries: int = key(5, "tries per mirror", at_least=1)
    pause: float = key(2.0, "seconds before the second try, doubled before each further one", within="[0, inf)")
    timeout: float = key(60.0, "seconds without a byte after which a try fails", above=0)


@dataclass(frozen=True)
class MultiHotConfig:
    """Expansion of ids to bags, as in MLPerf v2's data (see data_prep/dataset/multi_hot.py)."""

    sizes: Any = key(
        None,
        "expand ids to bags: a list with the ids per bag of each feature, or mlperf_v2; data_prep writes the bags "
        "to shards, app makes them while it reads shards with one id per bag; null: one id per bag",
    )
    distribution: Distribution | None = key(
        None, "distribution of a bag's further ids; null: uniform", only_with="sizes"
    )
    seed: int | None = key(None, "seed of their draws; null: 0, as in the reference", within=SEEDS, only_with="sizes")

    def bags(self) -> MultiHot | None:
        """Return the bags that ids are expanded to, or None. Raise UserError for invalid values."""
        return MultiHot.from_settings("data.multi_hot", self.sizes, self.distribution, self.seed)


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
    direct: bool = key(False, "write rows straight to shards: the same rows, but no raw files")


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
        "path, glob, directory of day files, or a list of these, plain or compressed (.gz, .bz2, .xz, .zst); in the "
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
        None, "amd_blog: columns with more values are dropped; null: 10,000, as in the blog", at_least=1
    )
    vocabulary_order: VocabularyOrder | None = key(None, "vocabulary: order of the ids; null: by frequency")
    dense_transform: DenseTransform | None = key(
        None,
        "how integers become numbers; null: the encoding's own, for your own table signed_log1p. A transform of a "
        "column in data.schema takes its place",
    )
    split: SplitConfig = field(default_factory=SplitConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
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
        """Return the properties of the source."""
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
    """Return whether other processes of this machine may be started."""
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


@dataclass(frozen=True)
class PublishedDataConfig:
    """The published set, and its directories."""

    name: str = key(MISSING, "name of the dataset: kgcn_lastfm, ncf_movielens_1m, tfrs_movielens_100k")
    out: str | None = key(None, "directory of the splits, train.csv and so on; null: data/NAME")
    raw: str | None = key(None, "directory that holds its files, or to which they are downloaded; null: OUT/raw")
