"""Values out of range, and keys that would have no effect, are refused before anything is read."""

import math

from common.errors import UserError
from data_prep.config.keys import (
    CHUNKS_PER_BUDGET,
    MAX_TABLE_ROWS,
    MIN_MEMORY_BUDGET,
    DataConfig,
    SplitConfig,
    SyntheticConfig,
    chunk_size,
    dataset_path,
    multi_hot_bags,
    parse_size,
)
from data_prep.dataset.options import DataSource, DenseTransform, Encoding, SplitMethod

GENERATED = (DataSource.random, DataSource.trace)
USED_BY_GENERATORS = {"source", "path", "overwrite", "workers", "remote", "synthetic", "random", "trace"}
SEEDED = (SplitMethod.random, SplitMethod.scikit_learn)
GROUPS = {"synthetic": DataSource.synthetic, "remote": DataSource.remote}
MAX_INTERACTION = 10  # beyond, all probabilities are 0 or 1


def validate(data: DataConfig) -> None:
    """Refuse values out of range.

    Raises:
        UserError: naming the key, its value and the limit.
    """
    dataset_path(data)
    _at_least("data.frequency_threshold", data.frequency_threshold, 0)
    if data.workers is not None:
        _at_least("data.workers", data.workers, 1)
        if data.scheduler is not None:
            raise UserError("data.workers: has no effect with data.scheduler; the cluster decides their number")
    _validate_memory(data)
    if data.max_ind_range is not None:
        _at_least("data.max_ind_range", data.max_ind_range, 1)
        if data.max_ind_range > MAX_TABLE_ROWS:
            raise UserError(f"data.max_ind_range={data.max_ind_range}: at most {MAX_TABLE_ROWS}, as ids are int32")
    elif data.encoding is Encoding.hash:
        raise UserError("data.encoding=hash: needs data.max_ind_range, the rows per table, e.g. 1000000")
    if data.encoding is Encoding.hash and data.frequency_threshold > 1:
        raise UserError("data.frequency_threshold: has no effect with data.encoding=hash; leave it out")
    _validate_choice_of_rows(data)
    multi_hot_bags(data)
    _validate_synthetic(data.synthetic)
    _at_least("data.remote.tries", data.remote.tries, 1)
    if data.days is not None:
        if data.source is not DataSource.remote:
            raise UserError("data.days: has no effect here; it chooses days to fetch, e.g. with data=criteo_1tb")
        last = math.inf if data.remote.days is None else data.remote.days - 1
        if not data.days or len(set(data.days)) != len(data.days) or not 0 <= min(data.days) <= max(data.days) <= last:
            numbers = "from 0" if data.remote.days is None else f"from 0 to {last}"
            raise UserError(f"data.days={data.days}: give different days, {numbers}, e.g. [0,1,2]")


def _validate_memory(data: DataConfig) -> None:
    budget = parse_size(data.memory_budget, "data.memory_budget")
    _at_least("data.memory_budget", budget, MIN_MEMORY_BUDGET)
    _at_least("data.chunk_bytes", chunk_size(data), 1)
    if chunk_size(data) > budget // CHUNKS_PER_BUDGET:
        raise UserError(
            f"data.chunk_bytes={data.chunk_bytes}: too much for data.memory_budget={data.memory_budget}; give at most "
            f"a {CHUNKS_PER_BUDGET}th of it"
        )


def _validate_choice_of_rows(data: DataConfig) -> None:
    if not 0 <= data.split.held_out < 1:
        raise UserError(f"data.split.held_out={data.split.held_out}: give a share of the rows, 0 <= share < 1")
    for key, seed in (("data.split.seed", data.split.seed), ("data.sampling.seed", data.sampling.seed)):
        if not 0 <= seed < 2**32:
            raise UserError(f"{key}={seed}: must be at least 0 and below 2^32")
    if not 0 <= data.sampling.negative_drop_rate <= 1:
        rate = data.sampling.negative_drop_rate
        raise UserError(f"data.sampling.negative_drop_rate={rate}: give a share, 0 <= share <= 1")


def refuse_unused_keys(data: DataConfig) -> None:
    """Raises UserError for a key of the encoding of raw rows, where there are none."""
    usual = DataConfig()
    for key in vars(usual):
        if key not in USED_BY_GENERATORS and getattr(data, key) != getattr(usual, key):
            raise UserError(f"data.{key}: has no effect with data={data.source.value}, which makes ids itself")


def refuse_criteo_only_choices(data: DataConfig) -> None:
    """Raises UserError for a schema that does not go with the other choices."""
    if data.schema is None:
        if data.source is DataSource.custom:
            raise UserError("data.schema: not given; name the YAML file that describes your table")
        return
    if data.source not in (DataSource.local, DataSource.custom):
        raise UserError(f"data.schema={data.schema}: for your own files, with data=local; these rows are Criteo's")
    if data.encoding not in (Encoding.vocabulary, Encoding.hash):
        raise UserError(f"data.encoding={data.encoding.value}: of Criteo's rows only; use vocabulary or hash")
    if data.dense_transform in (DenseTransform.torchrec, DenseTransform.log_float32, DenseTransform.integers):
        name = data.dense_transform.value
        raise UserError(f"data.dense_transform={name}: of Criteo's rows only; use log1p, minmax or raw")


def _validate_synthetic(synthetic: SyntheticConfig) -> None:
    _at_least("data.synthetic.days", synthetic.days, 1)
    _at_least("data.synthetic.rows", synthetic.rows, synthetic.days)
    _at_least("data.synthetic.seed", synthetic.seed, 0)
    _at_least("data.synthetic.max_cardinality", synthetic.max_cardinality, 3)
    if not 0 < synthetic.click_rate < 1:
        raise UserError(f"data.synthetic.click_rate={synthetic.click_rate}: give a share, 0 < share < 1")
    if not 0.1 <= synthetic.difficulty < math.inf:
        raise UserError(f"data.synthetic.difficulty={synthetic.difficulty}: must be a number of at least 0.1")
    if not 0 <= synthetic.interaction <= MAX_INTERACTION:
        factor = synthetic.interaction
        raise UserError(f"data.synthetic.interaction={factor}: give a factor from 0 to {MAX_INTERACTION}")
    if not 0 <= synthetic.drift <= math.pi / 2:
        raise UserError(f"data.synthetic.drift={synthetic.drift}: give an angle in radians, from 0 to pi / 2")


def _at_least(key: str, value: int, limit: int) -> None:
    if value < limit:
        raise UserError(f"{key}={value}: must be at least {limit}")


def refuse_unused_choices(data: DataConfig) -> None:
    """Raises UserError for a key that has no effect beside the others; see also `refuse_unused_split_keys`."""
    usual = DataConfig()
    for group, source in GROUPS.items():
        here, there = vars(getattr(data, group)), vars(getattr(usual, group))
        for key, value in here.items():
            if data.source is not source and value != there[key]:
                raise UserError(f"data.{group}.{key}: has no effect with data={data.source.value}; leave it out")
    if data.sampling.seed != usual.sampling.seed and not data.sampling.negative_drop_rate:
        raise UserError("data.sampling.seed: has no effect without data.sampling.negative_drop_rate; leave it out")


def refuse_unused_split_keys(split: SplitConfig, method: SplitMethod) -> None:
    """Raises UserError for a key of the split that has no effect with its method."""
    usual = SplitConfig()
    if split.seed != usual.seed and method not in SEEDED:
        raise UserError(f"data.split.seed: has no effect with data.split.method={method.value}; leave it out")
    if split.held_out != usual.held_out and method is SplitMethod.last_day:
        raise UserError("data.split.held_out: has no effect with data.split.method=last_day; use fraction, or leave it")
