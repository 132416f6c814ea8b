"""Shares of held-out values that do not occur in train, and of values that share an id, by feature."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.bags import unpack
from data_prep.dataset.misleading import UNKNOWN_SHARE, VALUES_PER_ROW
from data_prep.engine.job import ChunkRecord, Job
from data_prep.io.arrays import open_array
from data_prep.stages.split import BuiltShard

MAX_ROWS = 1 << 20  # Ids of larger train splits are not compared.


def unseen_shares(job: Job, built: Sequence[BuiltShard], features: Sequence[str]) -> dict[str, float] | None:
    """Return the share of val's and test's values that are not in train, by feature.

    With a vocabulary fitted on train, such values have no id. Rare and capped values have none either, so the share of
    values without an id in train is subtracted.

    Returns:
        None if the shares are unknown: no held-out rows, bags in place of ids, or too many rows to compare.
    """
    train, held_out = ([shard for shard in built if (shard.split == "train") == of_train] for of_train in (True, False))
    if job.bags is not None or not held_out:
        return None
    if job.rules.fitted_on_train and job.rules.order is not None:
        train_share, held_out_share = (_unknown_share(job, shards, features) for shards in (train, held_out))
        shares = np.maximum(held_out_share - train_share, 0)
    elif sum(shard.shard.rows for shard in train) <= MAX_ROWS:
        shares = _new_ids(job, train, held_out, features)
    else:
        return None
    return dict(zip(features, shares.tolist(), strict=True))


def shared_ids(
    job: Job,
    built: Sequence[BuiltShard],
    records: Sequence[ChunkRecord],
    features: Sequence[str],
    num_values: Callable[[str], int | None],
) -> dict[str, dict[str, float]]:
    """Return what `data.max_ind_range` merges, by feature: values per row, or the share of train's unknown values.

    Hashed values are counted by chunk, Criteo's in the first rows alone, and the largest number per row is returned.

    num_values: the number of values in a feature's vocabulary.
    """
    rules = job.rules
    if rules.max_ind_range is None:
        return {}
    if rules.order is not None and rules.wraps:
        values = {name: num_values(name) or 0 for name in features}
        return {VALUES_PER_ROW: {name: max(1, count / rules.max_ind_range) for name, count in values.items()}}
    if rules.shares_unknown_id or (job.bags is not None and rules.order is not None):
        return {}
    if rules.order is None:
        per_row = zip(*(record.values_per_row for record in records if record.values_per_row), strict=True)
        return {VALUES_PER_ROW: dict(zip(features, map(max, per_row), strict=False))}
    train = [shard for shard in built if shard.split == "train"]
    return {UNKNOWN_SHARE: dict(zip(features, _unknown_share(job, train, features).tolist(), strict=True))}


def _columns(job: Job, shard: BuiltShard, features: Sequence[str]) -> list[NDArray[np.int32]]:
    """Map the ids of each feature in a shard that is still in the directory of the job's work."""
    arrays = {target.rsplit(".", 2)[-2]: open_array(job.work / source) for source, target in shard.moves}
    ragged = job.schema.ragged
    bags = iter(unpack(arrays["values"], arrays["offsets"], len(ragged)) if ragged else ())
    single = iter(arrays["sparse"].T)
    return [next(bags).ids if name in ragged else next(single) for name in features]


def _unknown_share(job: Job, shards: Sequence[BuiltShard], features: Sequence[str]) -> NDArray[np.float64]:
    unknown = np.sum([shard.unknown for shard in shards], axis=0)
    values = np.sum([[len(ids) for ids in _columns(job, shard, features)] for shard in shards], axis=0)
    return np.asarray(unknown / np.maximum(values, 1), np.float64)


def _new_ids(
    job: Job, train: Sequence[BuiltShard], held_out: Sequence[BuiltShard], features: Sequence[str]
) -> NDArray[np.float64]:
    """Return the share of held-out ids that no row of train has."""
    trained: list[NDArray[np.int32]] = [np.zeros(0, np.int32)] * len(features)
    for shard in train:
        trained = [np.union1d(ids, more) for ids, more in zip(trained, _columns(job, shard, features), strict=True)]
    new, total = np.zeros(len(features)), np.zeros(len(features))
    for shard in held_out:
        for number, ids in enumerate(_columns(job, shard, features)):
            new[number] += np.count_nonzero(~np.isin(ids, trained[number]))
            total[number] += len(ids)
    return np.asarray(new / np.maximum(total, 1), np.float64)
