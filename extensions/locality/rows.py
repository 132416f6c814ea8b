"""`data.source=trace`: rows whose ids have a profiled trace's locality, with labels from a ground-truth model."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.documents import Json
from common.errors import UserError
from common.files import digest_file
from data_prep.config.keys import SyntheticConfig
from data_prep.dataset.bags import Bags, offsets_of
from data_prep.dataset.format import SPLITS, ShardArrays
from data_prep.dataset.schema import CRITEO, Schema
from data_prep.encoding.dense import encode_dense
from data_prep.synthetic.bayes_scores import PROBABILITY_STEPS, bayes_scores
from data_prep.synthetic.rows import (
    CALIBRATION_BLOCK,
    CALIBRATION_ROWS,
    Rows,
    calibrate,
    draw_integers,
    draw_rows,
    label_steps,
    logits_of,
    seeded,
)
from data_prep.synthetic.teacher import Columns, Teacher, make_teacher
from extensions.locality.histogram import TableProfile, load_profiles
from extensions.locality.keys import REMEDY, TraceConfig
from extensions.locality.sampler import AccessGenerator, warn_of_length

LENGTHS_SEED = 0xBA6


class TraceRows:
    """A data_prep.stages.write_generated.Generator. Each table's accesses continue from train through val to test."""

    def __init__(self, config: TraceConfig, threads: int) -> None:
        """Raise UserError for invalid values, or a file that is no profile."""
        validate_trace(config)
        path = Path(str(config.profile))
        profiles, rows = load_profiles(path)
        self._config, self._threads = config, threads
        self._profiles = list(profiles.values())
        self._accesses = [AccessGenerator(p, (config.seed, i)) for i, p in enumerate(self._profiles)]
        self._is_ragged = [len(p.bag_lengths) > 2 or bool(p.bag_lengths[0]) for p in self._profiles]
        ragged = tuple(name for name, is_ragged in zip(profiles, self._is_ragged, strict=True) if is_ragged)
        self.schema = Schema(CRITEO.label, CRITEO.dense, tuple(profiles), ragged)
        self.num_embeddings = {name: profile.num_embeddings for name, profile in profiles.items()}
        trace = asdict(config) | {"profile": digest_file(path).sha256}
        self.encoding: Json = {"name": "trace", "trace": trace}
        self.rows = dict(zip(SPLITS, (config.rows or rows, config.eval_rows, config.eval_rows), strict=True))
        per_row = [
            mean_bag(profile) + 2 * ragged for profile, ragged in zip(self._profiles, self._is_ragged, strict=True)
        ]
        self.row_bytes = 4.0 * (1 + len(CRITEO.dense) + sum(per_row))
        accesses = {name: round(self.rows["train"] * mean_bag(profile)) for name, profile in profiles.items()}
        warn_of_length(profiles, accesses, f"data.trace.rows={self.rows['train']}", f"{rows:,} samples")
        self._teacher = self._make_teacher()
        self._counts = {split: np.zeros((2, PROBABILITY_STEPS), np.int64) for split in SPLITS}

    def _make_teacher(self) -> Teacher:
        """Make a ground-truth model without interactions, calibrated on rows with uniform ids, as in the long run."""
        config = self._config
        synthetic = SyntheticConfig(seed=config.seed, click_rate=config.click_rate, difficulty=config.difficulty)
        sizes = np.array(list(self.num_embeddings.values()), np.int64)
        zero = np.zeros(len(sizes))
        teacher = make_teacher(synthetic, Columns(sizes, zero, zero.astype(np.float32), ()), 0)
        return calibrate(teacher, synthetic, draw_rows(teacher, config.seed, 0, CALIBRATION_BLOCK, CALIBRATION_ROWS))

    def shard(self, split: str, start: int, rows: int) -> ShardArrays:
        """Return the next rows of a split."""
        key = [self._config.seed, 1 + SPLITS.index(split), start]
        with ThreadPoolExecutor(self._threads) as executor:
            columns = list(executor.map(lambda i: self._column(i, key, rows), range(len(self._profiles))))
        integers, present = draw_integers(self._teacher, seeded(key), rows)
        first, filled = (np.stack(arrays, axis=1) for arrays in zip(*map(first_ids, columns), strict=True))
        logits = logits_of(self._teacher, Rows(integers, present, first, filled, np.zeros(0)))
        steps, labels = label_steps(logits, key)
        for label in (0, 1):
            self._counts[split][label] += np.bincount(steps[labels == label], minlength=PROBABILITY_STEPS)
        one_hot = [c.ids for c, ragged in zip(columns, self._is_ragged, strict=True) if not ragged]
        bags = tuple(c for c, ragged in zip(columns, self._is_ragged, strict=True) if ragged)
        sparse = np.stack(one_hot, axis=1) if one_hot else np.empty((rows, 0), np.int32)
        dense = encode_dense(np.where(present, integers, np.int32(0)))
        return ShardArrays(labels[:, None], dense, sparse, bags)

    def _column(self, feature: int, key: list[int], rows: int) -> Bags:
        lengths = np.ones(rows, np.int64)
        if self._is_ragged[feature]:
            rng = seeded([*key, feature, LENGTHS_SEED])
            counts = self._profiles[feature].bag_lengths
            lengths = rng.choice(len(counts), rows, p=counts / counts.sum())
        offsets = offsets_of(lengths)
        return Bags(self._accesses[feature].draw(int(offsets[-1])), offsets)

    def extra(self) -> Json:
        """Return the best possible scores, as data.source=synthetic does."""
        total = np.sum(list(self._counts.values()), axis=0)
        splits = {s: asdict(bayes_scores(c.sum(axis=0), c[1])) for s, c in self._counts.items() if c.any()}
        return {"bayes": {**asdict(bayes_scores(total.sum(axis=0), total[1])), "splits": splits}}


def mean_bag(profile: TableProfile) -> float:
    """Return the mean number of ids per bag."""
    return profile.accesses / max(1, int(profile.bag_lengths.sum()))


def first_ids(bags: Bags) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the first id of each bag [rows], and a mask of the nonempty bags."""
    filled = bags.lengths > 0
    indices = np.minimum(bags.offsets[:-1], max(0, len(bags.values) - 1))
    first = bags.values[indices] if len(bags.values) else np.zeros(len(filled), np.int32)
    return np.where(filled, first, np.int32(0)), filled


def validate_trace(config: TraceConfig) -> None:
    """Raise UserError for invalid values."""
    if not config.profile:
        raise UserError(f"data.trace.profile: not given; {REMEDY}")
