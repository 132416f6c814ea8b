"""Criteo-like rows with a known best possible score, drawn block by block (see data_prep/synthetic/teacher.py)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.config.keys import SyntheticConfig
from data_prep.dataset.schema import CRITEO_NUM_DENSE, CRITEO_NUM_SPARSE
from data_prep.parsing.criteo import Block
from data_prep.synthetic.bayes_scores import PROBABILITY_BITS, PROBABILITY_STEPS
from data_prep.synthetic.teacher import (
    PAIR_DEVIATION,
    SINGLE_DEVIATION,
    TRIPLE_DEVIATION,
    Teacher,
    category_ranks,
    criteo_columns,
    integers_from_normal,
    make_teacher,
    teacher_logits,
)

BLOCK_ROWS = 1 << 14
CALIBRATION_ROWS = 1 << 16
CALIBRATION_BLOCK = 2**31 - 1  # no real block has these random numbers
MAX_ROW_BYTES = 2 + CRITEO_NUM_DENSE * 12 + CRITEO_NUM_SPARSE * 9
GENERATOR_VERSION = 4
FEW_VALUES = 128  # version 4 cut the intercept off up to this cardinality
HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
MAX_INTERCEPT = 30.0  # initial bound
MAX_LOGIT = 700.0  # the exponential of larger ones is infinite
TINY = 1e-9  # below this standard deviation all logits are the same


@dataclass(frozen=True)
class Rows:
    """Rows without labels; `..._present` masks fields that are not missing."""

    integers: NDArray[np.int32]
    integer_present: NDArray[np.bool_]
    ranks: NDArray[np.int32]
    category_present: NDArray[np.bool_]
    logits: NDArray[np.float64]


class LabelledRows(NamedTuple):
    """Rows with labels [rows], 0 or 1, drawn from their click probabilities [rows]."""

    features: Rows
    labels: NDArray[np.int32]
    probability: NDArray[np.float32]


def generator_version(config: SyntheticConfig) -> int:
    """Return the version of a configuration's rows; rows with many values are those of version 4."""
    return GENERATOR_VERSION + (config.max_cardinality <= FEW_VALUES)


def calibrated_teacher(config: SyntheticConfig, day: int) -> Teacher:
    """Return a day's teacher, calibrated on a sample: effects to their deviations, intercept to the click rate."""
    teacher = make_teacher(config, criteo_columns(config.max_cardinality), day)
    return calibrate(teacher, config, draw_rows(teacher, config.seed, day, CALIBRATION_BLOCK, CALIBRATION_ROWS))


def calibrate(teacher: Teacher, config: SyntheticConfig, sample: Rows) -> Teacher:
    """Scale a drawn teacher by its logits on a sample of rows."""
    without_triples = teacher._replace(triple_forms=np.zeros_like(teacher.triple_forms))
    single = logits_of(without_triples._replace(pair_forms=np.zeros_like(teacher.pair_forms)), sample)
    pairs = logits_of(without_triples, sample) - single
    triples = logits_of(teacher, sample) - pairs - single
    for_single = _factor(SINGLE_DEVIATION, single) / config.difficulty
    for_pairs = _factor(PAIR_DEVIATION, pairs) / config.difficulty * config.interaction
    for_triples = _factor(TRIPLE_DEVIATION, triples) / config.difficulty * config.interaction
    total = single * for_single + pairs * for_pairs + triples * for_triples
    high = MAX_INTERCEPT
    while not _mean_probability(total - high) < config.click_rate < _mean_probability(total + high):
        high *= 2  # With few values the mean of the effects is far from 0.
    low = -high
    for _ in range(60):
        middle = (low + high) / 2
        if _mean_probability(total + middle) < config.click_rate:
            low = middle
        else:
            high = middle
    return teacher._replace(
        main=teacher.main * np.float32(for_single),
        slope=teacher.slope * for_single,
        pair_forms=teacher.pair_forms * np.float32(for_pairs),
        triple_forms=teacher.triple_forms * np.float32(for_triples),
        intercept=np.array([low]),
    )


def _factor(deviation: float, logits: NDArray[np.float64]) -> float:
    """Return the factor that scales logits to a standard deviation; 0 if they are all the same."""
    return float(deviation / logits.std()) if logits.std() > TINY else 0.0


def _mean_probability(logits: NDArray[np.float64]) -> float:
    return float(np.mean(1 / (1 + np.exp(-np.clip(logits, -MAX_LOGIT, MAX_LOGIT)))))


def day_rows(config: SyntheticConfig, day: int) -> int:
    """Return the rows of a day: equal shares, with the remainder in the first days."""
    return config.rows // config.days + (day < config.rows % config.days)


def block_sizes(rows: int) -> list[int]:
    """Return the rows of each block of a day."""
    return [min(BLOCK_ROWS, rows - start) for start in range(0, rows, BLOCK_ROWS)]


def draw_rows(teacher: Teacher, seed: int, day: int, block: int, rows: int) -> Rows:
    """Draw rows and their logits, which depend on the teacher and (seed, day, block) alone."""
    rng = seeded([seed, day, block])
    integers, integer_present = draw_integers(teacher, rng, rows)
    ranks = np.empty((rows, len(teacher.cardinality)), np.int32)
    logits = np.empty(rows)
    category_ranks(rng.random(ranks.shape, np.float32), teacher.cardinality, teacher.exponent, ranks)
    category_present = rng.random(ranks.shape, np.float32) >= teacher.category_missing
    teacher_logits(teacher, integers, integer_present, ranks, category_present, logits)
    return Rows(integers, integer_present, ranks, category_present, logits)


def logits_of(teacher: Teacher, rows: Rows) -> NDArray[np.float64]:
    """Return a teacher's logits for rows."""
    logits = np.empty(len(rows.ranks))
    teacher_logits(teacher, rows.integers, rows.integer_present, rows.ranks, rows.category_present, logits)
    return logits


def draw_integers(teacher: Teacher, rng: np.random.Generator, rows: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Draw integers [rows, N], and a mask of those that are not missing."""
    integers = np.empty((rows, CRITEO_NUM_DENSE), np.int32)
    normal = rng.standard_normal(integers.shape, np.float32)
    integers_from_normal(normal, teacher.log_mean, teacher.log_deviation, teacher.shift, integers)
    return integers, rng.random(integers.shape, np.float32) >= teacher.integer_missing


def label_steps(logits: NDArray[np.float64], key: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return click probabilities in steps of 1 / PROBABILITY_STEPS, and labels drawn from them."""
    steps = np.rint(PROBABILITY_STEPS / (1 + np.exp(-logits))).astype(np.int64)
    steps = np.clip(steps, 1, PROBABILITY_STEPS - 1)
    uniform = seeded([*key, PROBABILITY_BITS]).integers(0, PROBABILITY_STEPS, len(logits))
    return steps, (uniform < steps).astype(np.int32)


def seeded(key: list[int]) -> np.random.Generator:
    """Return a generator of random numbers that depend on `key` alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def label_rows(teacher: Teacher, seed: int, day: int, block: int, rows: int) -> LabelledRows:
    """Return one block of a day: rows, and labels drawn from their probabilities."""
    features = draw_rows(teacher, seed, day, block, rows)
    steps, labels = label_steps(features.logits, [seed, day, block])
    return LabelledRows(features, labels, (steps / PROBABILITY_STEPS).astype(np.float32))


def as_text(teacher: Teacher, rows: LabelledRows) -> bytes:
    """Format the rows as Criteo's TSV."""
    features = rows.features
    text = np.empty(len(rows.labels) * MAX_ROW_BYTES, np.uint8)
    length = write_rows(
        rows.labels,
        features.integers,
        features.integer_present,
        features.ranks,
        features.category_present,
        teacher.salt,
        HEX_DIGITS,
        text,
    )
    return text[:length].tobytes()


def as_block(teacher: Teacher, rows: LabelledRows) -> Block:
    """Return the rows as parsed from their text: missing fields are 0."""
    features = rows.features
    dense = np.where(features.integer_present, features.integers, np.int32(0))
    sparse = np.empty(features.ranks.shape, np.uint32)
    category_values(features.ranks, features.category_present, teacher.salt, sparse)
    return Block(rows.labels, dense, sparse)


@jit
def category_value(rank: np.int32, salt: np.uint32) -> np.uint32:
    """Return a 32-bit value, distinct for each rank (MurmurHash3's finaliser, a bijection)."""
    value = np.uint32(rank) ^ salt
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return value ^ (value >> np.uint32(16))


@jit
def category_values(
    ranks: NDArray[np.int32], present: NDArray[np.bool_], salt: NDArray[np.uint32], values: NDArray[np.uint32]
) -> None:
    """Write the value of each rank [rows, F], 0 for a missing one."""
    for row in range(ranks.shape[0]):
        for column in range(ranks.shape[1]):
            value = category_value(ranks[row, column], salt[column])
            values[row, column] = value if present[row, column] else np.uint32(0)


@jit
def _write_integer(value: np.int32, text: NDArray[np.uint8], position: int) -> int:
    """Write a decimal integer; return the position after it."""
    number = np.int64(value)
    if number < 0:
        text[position] = 45  # minus
        position += 1
        number = -number
    length = 1
    rest = number // 10
    while rest > 0:
        length += 1
        rest //= 10
    for digit in range(position + length - 1, position - 1, -1):
        text[digit] = 48 + number % 10
        number //= 10
    return position + length


@jit
def write_rows(
    labels: NDArray[np.int32],
    integers: NDArray[np.int32],
    integer_present: NDArray[np.bool_],
    ranks: NDArray[np.int32],
    category_present: NDArray[np.bool_],
    salt: NDArray[np.uint32],
    digits: NDArray[np.uint8],
    text: NDArray[np.uint8],
) -> int:
    """Write rows as Criteo's TSV into `text`; return the number of bytes."""
    position = 0
    for row in range(len(labels)):
        text[position] = 48 + labels[row]
        position += 1
        for column in range(integers.shape[1]):
            text[position] = 9  # tab
            position += 1
            if integer_present[row, column]:
                position = _write_integer(integers[row, column], text, position)
        for column in range(ranks.shape[1]):
            text[position] = 9
            position += 1
            if category_present[row, column]:
                value = category_value(ranks[row, column], salt[column])
                for digit in range(8):
                    text[position + digit] = digits[(value >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
                position += 8
        text[position] = 10  # newline
        position += 1
    return position
