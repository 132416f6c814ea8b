"""The ground-truth model ("teacher") of synthetic clicks, and its columns.

Cardinalities are those of Criteo Kaggle's 45,840,617 rows. Other properties of columns were fitted to its first 1,999
rows: shares of missing values; for a categorical column the exponent of the bounded Zipf law under which two rows share
a value equally often; for an integer column the lognormal law, rounded down, that is nearest to its quantiles.

A row's logit is an intercept, plus an effect of each category, plus an effect of each integer (linear in
log(1 + max(x, 0)) within bounds), plus interactions of low rank. The categories of some columns have vectors. Each pair
of these columns has its own bilinear form, which gives the pair's effect from two vectors (a factorisation machine,
Rendle 2010, with a form per pair of fields, Sun et al. 2021). Each triple has a trilinear form likewise. Effects and
vectors turn from day to day: those of days d apart correlate by cos(drift * d).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.config.keys import SyntheticConfig

KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
ZIPF_EXPONENTS = (
    2.03, 1.05, 1.06, 1.12, 2.61, 2.12, 0.76, 2.3, 4.25, 1.36, 0.79, 1.06, 0.79, 1.87, 0.87, 1.06, 1.45,
    0.95, 2.08, 1.28, 1.06, 2.32, 1.8, 1.18, 1.62, 1.07,
)  # fmt: skip
CATEGORY_MISSING = (
    0, 0, 0.034, 0.034, 0, 0.12, 0, 0, 0, 0, 0, 0.034, 0, 0, 0, 0.034, 0, 0, 0.44, 0.44, 0.034, 0.76, 0,
    0.034, 0.44, 0.44,
)  # fmt: skip
INTEGER_MISSING = (0.45, 0, 0.21, 0.22, 0.026, 0.22, 0.043, 0.0005, 0.043, 0.45, 0.043, 0.76, 0.22)
INTEGER_LOG_MEAN = (0.1, 1.8, 2.0, 1.6, 7.3, 3.6, 1.2, 2.0, 3.6, 0.0, 0.5, -1.2, 1.7)
INTEGER_LOG_DEVIATION = (1.7, 2.7, 1.5, 1.1, 2.8, 1.8, 1.9, 1.3, 1.8, 0.5, 0.9, 1.8, 1.3)
INTEGER_SHIFT = (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # the second column has negatives, as in Criteo

# Columns whose categories interact: small ones with few missing values, so that few rows suffice to learn them.
INTERACTING = (0, 1, 4, 5, 7, 13, 16, 22)


class Columns(NamedTuple):
    """Categorical columns: number of values, exponent of the Zipf law, share missing, and which columns interact."""

    cardinality: NDArray[np.int64]
    exponent: NDArray[np.float64]
    missing: NDArray[np.float32]
    interacting: tuple[int, ...]


def criteo_columns(max_cardinality: int) -> Columns:
    """Return Criteo Kaggle's columns, shrunk so that the largest has `max_cardinality` values.

    Columns shrink with the square root of their size, and none grows: 10,131,227 gives Kaggle's own.
    """
    kaggle = np.array(KAGGLE_CARDINALITIES, np.float64)
    cardinality = np.minimum(kaggle, np.ceil(max_cardinality * np.sqrt(kaggle / kaggle.max()))).astype(np.int64)
    missing = np.array(CATEGORY_MISSING, np.float32)
    return Columns(cardinality, np.array(ZIPF_EXPONENTS), missing, INTERACTING)


FACTORS = 2
# Frequent values have larger effects, since few rows would not suffice to learn effects of rare ones.
CATEGORY_DECAY = FACTOR_DECAY = 0.4
INTEGER_SHARE = 2 / 3  # deviation of an integer's effect over that of a category's most frequent value
# Deviations of the logits over the rows if `difficulty` and `interaction` are 1.
SINGLE_DEVIATION = 0.8
PAIR_DEVIATION = 1.0
TRIPLE_DEVIATION = 0.5
MAX_STANDARD_SCORE = 2.5
SHAPE_SEED, START_SEED, END_SEED = range(0x7EAC4E5, 0x7EAC4E8)


class Teacher(NamedTuple):
    """Arrays of one day for the kernels. F columns; the values of a column follow those of the previous one.

    first [F] int64: index of a column's first value; cardinality [F] int64; exponent [F] float64 of the
    Zipf law; salt [F] uint32; category_missing [F], integer_missing [N] float32; main [V] float32; interacting [K]
    int64; first_factor [K] int64: index of a column's first vector; factors [W, FACTORS] float32; pair_forms [K, K,
    FACTORS, FACTORS] float32, used for pairs (i, j > i); triple_forms [K, K, K, FACTORS, FACTORS,
    FACTORS] float32, likewise; log_mean, log_deviation, slope [N] float64; shift [N] int64; intercept [1] float64.
    """

    first: NDArray[np.int64]
    cardinality: NDArray[np.int64]
    exponent: NDArray[np.float64]
    salt: NDArray[np.uint32]
    category_missing: NDArray[np.float32]
    integer_missing: NDArray[np.float32]
    main: NDArray[np.float32]
    interacting: NDArray[np.int64]
    first_factor: NDArray[np.int64]
    factors: NDArray[np.float32]
    pair_forms: NDArray[np.float32]
    triple_forms: NDArray[np.float32]
    log_mean: NDArray[np.float64]
    log_deviation: NDArray[np.float64]
    slope: NDArray[np.float64]
    shift: NDArray[np.int64]
    intercept: NDArray[np.float64]


class _Effects(NamedTuple):
    """Standard normal numbers that main, factors and slope are computed from."""

    main: NDArray[np.float32]
    factors: NDArray[np.float32]
    slope: NDArray[np.float32]


def make_teacher(config: SyntheticConfig, columns: Columns, day: int) -> Teacher:
    """Draw a day's teacher with effects in proportion, but not yet to scale (see synthetic.calibrated_teacher)."""
    cardinality = columns.cardinality
    interacting = np.array(columns.interacting, np.int64)
    first = np.concatenate(([0], np.cumsum(cardinality)))
    first_factor = np.concatenate(([0], np.cumsum(cardinality[interacting]))).astype(np.int64)
    effects = _effects_of_day(config, int(first[-1]), int(first_factor[-1]), day)
    decay = np.concatenate([_falling(size, CATEGORY_DECAY) for size in cardinality])
    factor_decay = np.concatenate([np.zeros(0), *(_falling(size, FACTOR_DECAY) for size in cardinality[interacting])])
    rng = _generator(config.seed, SHAPE_SEED)
    salt = rng.integers(0, 2**32, len(cardinality), dtype=np.uint32)
    pair_forms, triple_forms = (
        rng.standard_normal((len(interacting),) * order + (FACTORS,) * order, np.float32) for order in (2, 3)
    )
    return Teacher(
        first=first[:-1],
        cardinality=cardinality,
        exponent=columns.exponent,
        salt=salt,
        category_missing=columns.missing,
        integer_missing=np.array(INTEGER_MISSING, np.float32),
        main=(effects.main * decay).astype(np.float32),
        interacting=interacting,
        first_factor=first_factor[:-1],
        factors=(effects.factors * factor_decay[:, None]).astype(np.float32),
        pair_forms=pair_forms,
        triple_forms=triple_forms,
        log_mean=np.array(INTEGER_LOG_MEAN),
        log_deviation=np.array(INTEGER_LOG_DEVIATION),
        slope=effects.slope.astype(np.float64) * INTEGER_SHARE,
        shift=np.array(INTEGER_SHIFT, np.int64),
        intercept=np.zeros(1),
    )


def _effects_of_day(config: SyntheticConfig, num_values: int, num_vectors: int, day: int) -> _Effects:
    """Return effects that turn, by an angle of `drift` a day, from one set of random numbers to another."""
    start = _draw_effects(_generator(config.seed, START_SEED), num_values, num_vectors)
    angle = config.drift * day
    if angle == 0:
        return start
    end = _draw_effects(_generator(config.seed, END_SEED), num_values, num_vectors)
    cosine, sine = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    return _Effects(*(cosine * a + sine * b for a, b in zip(start, end, strict=True)))


def _draw_effects(rng: np.random.Generator, num_values: int, num_vectors: int) -> _Effects:
    slope = rng.standard_normal(len(INTEGER_MISSING), np.float32)
    factors = rng.standard_normal((num_vectors, FACTORS), np.float32)
    return _Effects(rng.standard_normal(num_values, np.float32), factors, slope)


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose])))


def _falling(size: int, decay: float) -> NDArray[np.float32]:
    """Return (1 + rank) ** -decay for ranks 0 to size - 1, in float64: NumPy's float32 power depends on the CPU."""
    return (np.arange(1, size + 1, dtype=np.float64) ** -np.float64(np.float32(decay))).astype(np.float32)


@jit
def category_ranks(
    uniform: NDArray[np.float32],
    cardinality: NDArray[np.int64],
    exponent: NDArray[np.float64],
    ranks: NDArray[np.int32],
) -> None:
    """Write ranks [rows, F] for uniform numbers [rows, F], by the inverse distribution of a bounded Zipf law."""
    for column in range(uniform.shape[1]):
        last = np.float64(cardinality[column] + 1)
        power = 1.0 - exponent[column]
        span = last**power - 1.0
        for row in range(uniform.shape[0]):
            number = (span * np.float64(uniform[row, column]) + 1.0) ** (1.0 / power)
            ranks[row, column] = min(np.int32(number) - 1, np.int32(cardinality[column] - 1))


@jit
def integers_from_normal(
    normal: NDArray[np.float32],
    log_mean: NDArray[np.float64],
    log_deviation: NDArray[np.float64],
    shift: NDArray[np.int64],
    integers: NDArray[np.int32],
) -> None:
    """Write heavy-tailed integers [rows, N]: floor(exp(mean + deviation * normal)) - shift."""
    for row in range(normal.shape[0]):
        for column in range(normal.shape[1]):
            value = np.exp(log_mean[column] + log_deviation[column] * np.float64(normal[row, column]))
            integers[row, column] = np.int32(min(value, 1e9)) - shift[column]


@jit
def _triple_effects(
    teacher: Teacher,
    i: int,
    j: int,
    a: int,
    b: int,
    product: float,
    ranks: NDArray[np.int32],
    present: NDArray[np.bool_],
) -> float:
    """Return the interactions of columns i and j with each later column, from the product of their factors a and b."""
    total = 0.0
    for k in range(j + 1, len(teacher.interacting)):
        column = teacher.interacting[k]
        if present[column]:
            third = teacher.first_factor[k] + ranks[column]
            for c in range(FACTORS):
                total += teacher.triple_forms[i, j, k, a, b, c] * teacher.factors[third, c]
    return total * product


@jit
def _interactions(teacher: Teacher, ranks: NDArray[np.int32], present: NDArray[np.bool_]) -> float:
    total = 0.0
    columns = teacher.interacting
    for i in range(len(columns)):
        if not present[columns[i]]:
            continue
        left = teacher.first_factor[i] + ranks[columns[i]]
        for j in range(i + 1, len(columns)):
            if not present[columns[j]]:
                continue
            right = teacher.first_factor[j] + ranks[columns[j]]
            for a in range(FACTORS):
                for b in range(FACTORS):
                    product = np.float64(teacher.factors[left, a]) * teacher.factors[right, b]
                    total += teacher.pair_forms[i, j, a, b] * product
                    total += _triple_effects(teacher, i, j, a, b, product, ranks, present)
    return total


@jit
def teacher_logits(
    teacher: Teacher,
    integers: NDArray[np.int32],
    integer_present: NDArray[np.bool_],
    ranks: NDArray[np.int32],
    category_present: NDArray[np.bool_],
    logits: NDArray[np.float64],
) -> None:
    """Write each row's logit. A missing category has no effect; a missing integer counts as 0."""
    for row in range(len(logits)):
        logit = teacher.intercept[0]
        for column in range(integers.shape[1]):
            log = np.log1p(np.float64(max(integers[row, column], 0))) if integer_present[row, column] else 0.0
            score = (log - teacher.log_mean[column]) / teacher.log_deviation[column]
            logit += teacher.slope[column] * min(max(score, -MAX_STANDARD_SCORE), MAX_STANDARD_SCORE)
        for column in range(ranks.shape[1]):
            if category_present[row, column]:
                logit += teacher.main[teacher.first[column] + ranks[row, column]]
        logits[row] = logit + _interactions(teacher, ranks[row], category_present[row])
