"""The model behind synthetic clicks: what a column looks like, and what makes a click likely.

The logit of a row is an intercept, plus an effect of every category, plus a linear effect of every integer's
log(1 + max(x, 0)), plus a factorisation machine (Rendle 2010) over the smaller categorical columns. The
click probability is rounded to a multiple of 2^-20, so that a histogram of it is exact.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.jit import jit

PROBABILITY_BITS = 20
PROBABILITY_STEPS = 1 << PROBABILITY_BITS
FACTORS = 4
INTERACTING_CARDINALITY = 700

# distinct values of each column of Criteo Kaggle's training rows
KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
CATEGORY_MISSING = (
    0, 0, 0.034, 0.034, 0, 0.12, 0, 0, 0, 0, 0, 0.034, 0, 0, 0, 0.034, 0, 0, 0.44, 0.44, 0.034, 0.76, 0,
    0.034, 0.44, 0.44,
)  # fmt: skip
INTEGER_MISSING = (0.45, 0, 0.21, 0.22, 0.026, 0.22, 0.043, 0.0005, 0.043, 0.45, 0.043, 0.76, 0.22)
INTEGER_LOG_MEAN = (0.5, 1.5, 2.0, 1.6, 7.5, 3.6, 1.7, 2.2, 4.0, 0.3, 0.7, 0.2, 1.7)
INTEGER_LOG_DEVIATION = (1.1, 1.9, 1.4, 0.9, 2.0, 1.5, 1.4, 1.1, 1.3, 0.5, 0.9, 0.8, 0.9)
INTEGER_SHIFT = (0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # the second column has negatives, as in Criteo

# small columns say most, so that a short training run can learn
CATEGORY_DEVIATION, CATEGORY_DECAY = 0.45, 0.14
INTEGER_DEVIATION = 0.34
FACTOR_DEVIATION = 0.20
ZIPF_EXPONENTS = (1.15, 1.45)
MAX_STANDARD_SCORE = 2.5


class Teacher(NamedTuple):
    """Arrays that the kernel reads; F columns, their values one column after the other.

    first [F] int64: index of a column's first value; cardinality [F] int64; exponent [F] float64 of the
    Zipf law; salt [F] uint32; category_missing [F], integer_missing [N] float32; main [V] float32; factors
    [V, FACTORS] float32 (0 in columns that do not interact); log_mean, log_deviation, slope [N] float64;
    shift [N] int64; intercept [1] float64.
    """

    first: NDArray[np.int64]
    cardinality: NDArray[np.int64]
    exponent: NDArray[np.float64]
    salt: NDArray[np.uint32]
    category_missing: NDArray[np.float32]
    integer_missing: NDArray[np.float32]
    main: NDArray[np.float32]
    factors: NDArray[np.float32]
    log_mean: NDArray[np.float64]
    log_deviation: NDArray[np.float64]
    slope: NDArray[np.float64]
    shift: NDArray[np.int64]
    intercept: NDArray[np.float64]


def make_teacher(seed: int, max_cardinality: int, intercept: float = 0.0) -> Teacher:
    """The teacher of a seed; cardinalities shrink with the square root of Criteo Kaggle's."""
    kaggle = np.array(KAGGLE_CARDINALITIES, np.float64)
    cardinality = np.minimum(kaggle, np.ceil(max_cardinality * np.sqrt(kaggle / kaggle.max()))).astype(np.int64)
    first = np.concatenate(([0], np.cumsum(cardinality)))
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0x7EAC4E5])))
    deviation = CATEGORY_DEVIATION * cardinality**-CATEGORY_DECAY
    main = rng.standard_normal(first[-1]) * np.repeat(deviation, cardinality)
    factors = rng.standard_normal((first[-1], FACTORS)) * FACTOR_DEVIATION
    factors[np.repeat(cardinality > INTERACTING_CARDINALITY, cardinality)] = 0
    return Teacher(
        first=first[:-1],
        cardinality=cardinality,
        exponent=rng.uniform(*ZIPF_EXPONENTS, len(cardinality)),
        salt=rng.integers(0, 2**32, len(cardinality), dtype=np.uint32),
        category_missing=np.array(CATEGORY_MISSING, np.float32),
        integer_missing=np.array(INTEGER_MISSING, np.float32),
        main=main.astype(np.float32),
        factors=factors.astype(np.float32),
        log_mean=np.array(INTEGER_LOG_MEAN),
        log_deviation=np.array(INTEGER_LOG_DEVIATION),
        slope=rng.standard_normal(len(INTEGER_MISSING)) * INTEGER_DEVIATION,
        shift=np.array(INTEGER_SHIFT, np.int64),
        intercept=np.array([intercept]),
    )


@jit
def category_ranks(uniform, cardinality, exponent, ranks):  # type: ignore[no-untyped-def]
    """Ranks [rows, F] from uniform numbers [rows, F], by the inverse of a bounded Zipf law's distribution."""
    for column in range(uniform.shape[1]):
        last = np.float64(cardinality[column] + 1)
        power = 1.0 - exponent[column]
        span = last**power - 1.0
        for row in range(uniform.shape[0]):
            place = (span * np.float64(uniform[row, column]) + 1.0) ** (1.0 / power)
            ranks[row, column] = min(np.int32(place) - 1, np.int32(cardinality[column] - 1))


@jit
def integers_from_normal(normal, log_mean, log_deviation, shift, integers):  # type: ignore[no-untyped-def]
    """Heavy-tailed integers [rows, N]: floor(exp(mean + deviation * normal)) - shift."""
    for row in range(normal.shape[0]):
        for column in range(normal.shape[1]):
            value = np.exp(log_mean[column] + log_deviation[column] * np.float64(normal[row, column]))
            integers[row, column] = np.int32(min(value, 1e9)) - shift[column]


@jit
def teacher_logits(teacher, integers, integer_present, ranks, category_present, logits):  # type: ignore[no-untyped-def]
    """The logit of every row; what is missing has no effect, but for integers, which count as 0."""
    total = np.zeros(FACTORS)
    for row in range(len(logits)):
        logit = teacher.intercept[0]
        for column in range(integers.shape[1]):
            log = np.log1p(np.float64(max(integers[row, column], 0))) if integer_present[row, column] else 0.0
            score = (log - teacher.log_mean[column]) / teacher.log_deviation[column]
            logit += teacher.slope[column] * min(max(score, -MAX_STANDARD_SCORE), MAX_STANDARD_SCORE)
        total[:] = 0.0
        squares = 0.0
        for column in range(ranks.shape[1]):
            if category_present[row, column]:
                index = teacher.first[column] + ranks[row, column]
                logit += teacher.main[index]
                if teacher.cardinality[column] <= INTERACTING_CARDINALITY:
                    for factor in range(FACTORS):
                        value = np.float64(teacher.factors[index, factor])
                        total[factor] += value
                        squares += value * value
        interaction = -squares
        for factor in range(FACTORS):
            interaction += total[factor] * total[factor]
        logits[row] = logit + 0.5 * interaction


@dataclass(frozen=True)
class BayesScores:
    """What the best possible model would reach on the rows: the one that knows every click's probability.

    auc: of the probabilities against labels drawn from them, in expectation; logloss: nats per sample;
    ne: logloss over the entropy of base_rate; base_rate: mean probability; rows: how many.
    """

    auc: float
    logloss: float
    ne: float
    base_rate: float
    rows: int


def bayes_scores(histogram: NDArray[np.int64]) -> BayesScores:
    """Scores from histogram[i], the number of rows with click probability i / PROBABILITY_STEPS."""
    steps = np.flatnonzero(histogram)
    rows = histogram[steps].astype(np.float64)
    probability = steps / PROBABILITY_STEPS
    positive, negative = rows * probability, rows * (1 - probability)
    below = np.cumsum(negative) - negative
    auc = float(np.sum(positive * (below + negative / 2)) / (positive.sum() * negative.sum()))
    entropy = -(probability * np.log(probability) + (1 - probability) * np.log1p(-probability))
    logloss = float(np.sum(rows * entropy) / rows.sum())
    base_rate = float(positive.sum() / rows.sum())
    base_entropy = -(base_rate * np.log(base_rate) + (1 - base_rate) * np.log1p(-base_rate))
    return BayesScores(auc, logloss, float(logloss / base_entropy), base_rate, int(rows.sum()))
