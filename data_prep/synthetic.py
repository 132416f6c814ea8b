"""Synthetic rows with labels of a known model (docs/synthetic.md), and random ids.

Probabilities are multiples of 2^-20, so their histogram is exact, and all scores follow from it.

Cardinalities are those of Criteo Kaggle's 45,840,617 rows. Other properties of columns were fitted to its first 1,999
rows: shares of missing values; for a categorical column the exponent of the bounded Zipf law under which two rows share
a value equally often; for an integer column the lognormal law, rounded down, that is nearest to its quantiles.

A row's logit is an intercept, plus an effect of each category, plus an effect of each integer (linear in
log(1 + max(x, 0)) within bounds), plus interactions of low rank. The categories of some columns have vectors. Each pair
of these columns has its own bilinear form, which gives the pair's effect from two vectors (a factorisation machine,
Rendle 2010, with a form per pair of fields, Sun et al. 2021). Each triple has a trilinear form likewise. Effects and
vectors turn from day to day: those of days d apart correlate by cos(drift * d).
"""

import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.documents import Json, decode
from common.errors import UserError
from common.files import write_atomically
from common.jit import Int, compile_notice, jit
from common.machine import usable_cpus
from data_prep.codec.values import Bags, offsets_of
from data_prep.config import MAX_TABLE_ROWS, DataConfig, IdDistribution, RandomConfig, SyntheticConfig
from data_prep.dataset.format import SPLITS, ShardArrays
from data_prep.dataset.multi_hot import MLPERF_V2, parse_sizes
from data_prep.dataset.options import CRITEO_NUM_DENSE, Schema, to_json
from data_prep.io import ArrayWriter
from data_prep.sources.files import RAW_DIRECTORY, Source, resolve_sources, sources_of_generated

PROBABILITY_BITS = 20
PROBABILITY_STEPS = 1 << PROBABILITY_BITS


def bayes_scores(histogram: NDArray[np.int64], positives: NDArray[np.int64] | None = None) -> Json:
    """Compute the scores of the model that knows each click's probability from counts of rows.

    Returns auc, logloss, ne: expected against labels drawn from the probabilities; logloss is in nats per sample, ne is
    logloss over the entropy of base_rate, the mean probability. sampled_auc, sampled_logloss: against the labels that
    were drawn; None if these are all equal.

    histogram: [PROBABILITY_STEPS], number of rows with click probability i / PROBABILITY_STEPS. positives: number of
    these rows with label 1, if labels were drawn.
    """
    steps = np.flatnonzero(histogram)
    rows = histogram[steps].astype(np.float64)
    probability = steps / PROBABILITY_STEPS
    expected = rows * probability
    logloss = _logloss(rows, expected, probability)
    base_rate = float(expected.sum() / rows.sum())
    # NE divides by the entropy of the mean rate, which a constant prediction reaches.
    base_entropy = -(base_rate * np.log(base_rate) + (1 - base_rate) * np.log1p(-base_rate))
    scores: Json = {"auc": _auc(rows, expected), "logloss": logloss, "ne": float(logloss / base_entropy)}
    scores |= {"base_rate": base_rate, "rows": int(rows.sum())}
    if positives is None or not 0 < positives.sum() < rows.sum():
        return {**scores, "sampled_auc": None, "sampled_logloss": None}
    clicks = positives[steps].astype(np.float64)
    return {**scores, "sampled_auc": _auc(rows, clicks), "sampled_logloss": _logloss(rows, clicks, probability)}


def _auc(rows: NDArray[np.float64], positives: NDArray[np.float64]) -> float:
    """Return the AUC of ascending scores with `rows` rows and `positives` positives each."""
    negatives = rows - positives
    # Equal scores count half.
    below = np.cumsum(negatives) - negatives
    return float(np.sum(positives * (below + negatives / 2)) / (positives.sum() * negatives.sum()))


def _logloss(rows: NDArray[np.float64], positives: NDArray[np.float64], probability: NDArray[np.float64]) -> float:
    """Return the logloss, in nats per row, of predictions [n] for `rows` rows each, of which `positives` clicked."""
    # NumPy's logarithms of float64 differ in the last bit between processors with AVX-512 and without; these do not.
    exact = probability.astype(np.longdouble)
    entropy = -(positives * np.log(exact) + (rows - positives) * np.log1p(-exact))
    return float(entropy.sum() / rows.sum())


def truth_path(day: Path) -> Path:
    """Return the path of a generated day's click probabilities, [rows] float32."""
    return day.with_name(f"truth_{day.stem.removeprefix('day_')}.npy")


KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
ZIPF_EXPONENTS = np.array([
    2.03, 1.05, 1.06, 1.12, 2.61, 2.12, 0.76, 2.3, 4.25, 1.36, 0.79, 1.06, 0.79, 1.87, 0.87, 1.06, 1.45,
    0.95, 2.08, 1.28, 1.06, 2.32, 1.8, 1.18, 1.62, 1.07,
])  # fmt: skip
CATEGORY_MISSING = np.array([
    0, 0, 0.034, 0.034, 0, 0.12, 0, 0, 0, 0, 0, 0.034, 0, 0, 0, 0.034, 0, 0, 0.44, 0.44, 0.034, 0.76, 0,
    0.034, 0.44, 0.44,
], np.float32)  # fmt: skip
INTEGER_MISSING = np.array(
    [0.45, 0, 0.21, 0.22, 0.026, 0.22, 0.043, 0.0005, 0.043, 0.45, 0.043, 0.76, 0.22], np.float32
)
LOG_MEAN = np.array([0.1, 1.8, 2.0, 1.6, 7.3, 3.6, 1.2, 2.0, 3.6, 0.0, 0.5, -1.2, 1.7])
LOG_DEVIATION = np.array([1.7, 2.7, 1.5, 1.1, 2.8, 1.8, 1.9, 1.3, 1.8, 0.5, 0.9, 1.8, 1.3])
INTEGER_SHIFT = np.array([0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])  # the second column has negatives, as in Criteo

# Columns whose categories interact: small ones with few missing values, so that few rows suffice to learn them.
INTERACTING = np.array([0, 1, 4, 5, 7, 13, 16, 22])


FACTORS = 2  # length of the vector of a category of an interacting column
# Frequent values have larger effects, since few rows would not suffice to learn effects of rare ones.
DECAY = np.float64(np.float32(0.4))
INTEGER_SHARE = 2 / 3  # deviation of an integer's effect over that of a category's most frequent value
DEVIATIONS = (0.8, 1.0, 0.5)  # of the logits of columns, pairs and triples, if `difficulty` and `interaction` are 1
MAX_STANDARD_SCORE = 2.5
SHAPE_SEED, START_SEED, END_SEED = range(0x7EAC4E5, 0x7EAC4E8)


class Teacher(NamedTuple):
    """Arrays of one day for the kernels. F columns; the values of a column follow those of the previous one.

    first [F] int64: index of a column's first value; cardinality [F] int64; salt [F] uint32; main [V] float32: effect
    of each value; first_factor [K] int64: index of an interacting column's first vector; factors [W, FACTORS] float32;
    pair_forms [K, K, FACTORS, FACTORS] float32, used for pairs (i, j > i); triple_forms [K, K, K, FACTORS, FACTORS,
    FACTORS] float32, likewise; slope [N] float64; intercept [1] float64.
    """

    first: NDArray[np.int64]
    cardinality: NDArray[np.int64]
    salt: NDArray[np.uint32]
    main: NDArray[np.float32]
    first_factor: NDArray[np.int64]
    factors: NDArray[np.float32]
    pair_forms: NDArray[np.float32]
    triple_forms: NDArray[np.float32]
    slope: NDArray[np.float64]
    intercept: NDArray[np.float64]


def make_teacher(config: SyntheticConfig, day: int) -> Teacher:
    """Draw a day's teacher with effects in proportion, but not yet to scale (see synthetic.calibrated_teacher)."""
    # Columns shrink with the square root of their size, and none grows: 10,131,227 gives Criteo Kaggle's own.
    kaggle = np.array(KAGGLE_CARDINALITIES, np.float64)
    largest = np.ceil(config.max_cardinality * np.sqrt(kaggle / kaggle.max()))
    cardinality = np.minimum(kaggle, largest).astype(np.int64)
    first, first_factor = offsets_of(cardinality), offsets_of(cardinality[INTERACTING])
    # Effects turn, by an angle of `drift` a day, from one set of standard normal numbers to another.
    sets = []
    for seed in (START_SEED, END_SEED):
        rng = seeded_generator([config.seed, seed])
        slope = rng.standard_normal(len(INTEGER_MISSING), np.float32)
        factors = rng.standard_normal((int(first_factor[-1]), FACTORS), np.float32)
        sets.append((rng.standard_normal(int(first[-1]), np.float32), factors, slope))
    # A rotation keeps the size of the effects, so days differ without becoming harder.
    cosine, sine = np.float32(math.cos(config.drift * day)), np.float32(math.sin(config.drift * day))
    main, factors, slope = (cosine * start + sine * end for start, end in zip(*sets, strict=True))
    # By rank, in float64: NumPy's float32 power depends on the CPU.
    decays = [(np.arange(1, size + 1, dtype=np.float64) ** -DECAY).astype(np.float32) for size in cardinality]
    rng = seeded_generator([config.seed, SHAPE_SEED])
    # Without salts, equal ranks of all columns would have the same value.
    salt = rng.integers(0, 2**32, len(cardinality), dtype=np.uint32)
    pair_forms, triple_forms = (
        rng.standard_normal((len(INTERACTING),) * order + (FACTORS,) * order, np.float32) for order in (2, 3)
    )
    return Teacher(
        first=first[:-1],
        cardinality=cardinality,
        salt=salt,
        main=main * np.concatenate(decays),
        first_factor=first_factor[:-1],
        factors=factors * np.concatenate([decays[column] for column in INTERACTING])[:, None],
        pair_forms=pair_forms,
        triple_forms=triple_forms,
        slope=slope.astype(np.float64) * INTEGER_SHARE,
        intercept=np.zeros(1),
    )


def seeded_generator(key: list[int]) -> np.random.Generator:
    """Return a generator of random numbers that depend on `key` alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


class Rows(NamedTuple):
    """Rows without labels: integers [rows, N], and ranks [rows, F] of categories by frequency from 0.

    `..._present` masks fields that are not missing.
    """

    integers: NDArray[np.int32]
    integer_present: NDArray[np.bool_]
    ranks: NDArray[np.int32]
    category_present: NDArray[np.bool_]


@jit
def _interactions(teacher: Teacher, ranks: NDArray[np.int32], present: NDArray[np.bool_]) -> float:
    """Return the effects of all pairs and triples of a row's interacting columns; ranks, present: [F]."""
    total, columns = 0.0, INTERACTING
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
                    triples = 0.0
                    for k in range(j + 1, len(columns)):
                        if present[columns[k]]:
                            third = teacher.first_factor[k] + ranks[columns[k]]
                            for c in range(FACTORS):
                                triples += teacher.triple_forms[i, j, k, a, b, c] * teacher.factors[third, c]
                    total += triples * product
    return total


@jit
def logits_of(teacher: Teacher, rows: Rows) -> NDArray[np.float64]:
    """Return the logits [rows] that a teacher gives rows, such as one without triples, to tell effects apart.

    A missing category has no effect; a missing integer counts as 0.
    """
    logits = np.empty(len(rows.ranks))
    for row in range(len(logits)):
        logit = teacher.intercept[0]
        for column in range(rows.integers.shape[1]):
            is_present = rows.integer_present[row, column]
            log = np.log1p(np.float64(max(rows.integers[row, column], 0))) if is_present else 0.0
            score = (log - LOG_MEAN[column]) / LOG_DEVIATION[column]
            # Bounds keep the heaviest numbers from deciding a label alone.
            logit += teacher.slope[column] * min(max(score, -MAX_STANDARD_SCORE), MAX_STANDARD_SCORE)
        for column in range(rows.ranks.shape[1]):
            if rows.category_present[row, column]:
                logit += teacher.main[teacher.first[column] + rows.ranks[row, column]]
        logits[row] = logit + _interactions(teacher, rows.ranks[row], rows.category_present[row])
    return logits


BLOCK_ROWS = 1 << 14  # rows of one stream of random numbers
CALIBRATION_ROWS = 1 << 16  # rows of the sample that sets the scale of effects
CALIBRATION_BLOCK = 2**31 - 1  # no real block has these random numbers
GENERATOR_VERSION = 4  # changes when the rows of a configuration change
MAX_INTERCEPT = 30.0  # initial bound
MAX_LOGIT = 700.0  # the exponential of larger ones is infinite
TINY = 1e-9  # below this standard deviation all logits are the same


class LabelledRows(NamedTuple):
    """Rows with labels [rows], 0 or 1, drawn from their click probabilities [rows]."""

    features: Rows
    labels: NDArray[np.int32]
    probability: NDArray[np.float32]


def calibrated_teacher(config: SyntheticConfig, day: int) -> Teacher:
    """Return a day's teacher, calibrated on a sample: effects to their deviations, intercept to the click rate."""
    teacher = make_teacher(config, day)
    sample = draw_rows(teacher, config.seed, day, CALIBRATION_BLOCK, CALIBRATION_ROWS)
    # Each kind of effect is scaled to its own deviation over the rows, so that models rank as they do in practice.
    without_triples = teacher._replace(triple_forms=np.zeros_like(teacher.triple_forms))
    single = logits_of(without_triples._replace(pair_forms=np.zeros_like(teacher.pair_forms)), sample)
    pairs = logits_of(without_triples, sample) - single
    triples = logits_of(teacher, sample) - pairs - single
    single_scale, pair_scale, triple_scale = (
        (deviation / part.std() if part.std() > TINY else 0.0) / config.difficulty * interaction
        for part, deviation, interaction in zip(
            (single, pairs, triples), DEVIATIONS, (1.0, config.interaction, config.interaction), strict=True
        )
    )
    total = single * single_scale + pairs * pair_scale + triples * triple_scale
    high = MAX_INTERCEPT
    while not _mean_probability(total - high) < config.click_rate < _mean_probability(total + high):
        high *= 2  # With few values the mean of the effects is far from 0.
    low = -high
    # Sixty steps of bisection reach the precision of a float64.
    for _ in range(60):
        middle = (low + high) / 2
        if _mean_probability(total + middle) < config.click_rate:
            low = middle
        else:
            high = middle
    return teacher._replace(
        main=teacher.main * np.float32(single_scale),
        slope=teacher.slope * single_scale,
        pair_forms=teacher.pair_forms * np.float32(pair_scale),
        triple_forms=teacher.triple_forms * np.float32(triple_scale),
        intercept=np.array([low]),
    )


def _mean_probability(logits: NDArray[np.float64]) -> float:
    """Return the mean click probability of rows with these logits."""
    return float(np.mean(1 / (1 + np.exp(-np.clip(logits, -MAX_LOGIT, MAX_LOGIT)))))


def day_rows(config: SyntheticConfig, day: int) -> int:
    """Return the number of rows of a day: equal shares, with the remainder in the first days."""
    return config.rows // config.days + (day < config.rows % config.days)


def draw_rows(teacher: Teacher, seed: int, day: int, block: int, rows: int) -> Rows:
    """Draw rows, which depend on the teacher's cardinalities and (seed, day, block) alone."""
    rng = seeded_generator([seed, day, block])
    normal = rng.standard_normal((rows, CRITEO_NUM_DENSE), np.float32)
    integer_present = rng.random(normal.shape, np.float32) >= INTEGER_MISSING
    uniform = rng.random((rows, len(teacher.cardinality)), np.float32)
    integers, ranks = _fields_of_draws(normal, uniform, teacher.cardinality)
    return Rows(integers, integer_present, ranks, rng.random(ranks.shape, np.float32) >= CATEGORY_MISSING)


@jit
def _fields_of_draws(
    normal: NDArray[np.float32], uniform: NDArray[np.float32], cardinality: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return integers [rows, N] for normal numbers, and ranks [rows, F] for uniform ones."""
    integers, ranks = np.empty(normal.shape, np.int32), np.empty(uniform.shape, np.int32)
    for row in range(normal.shape[0]):
        for column in range(normal.shape[1]):
            # The tail of a lognormal law exceeds int32, so it is cut.
            value = np.exp(LOG_MEAN[column] + LOG_DEVIATION[column] * np.float64(normal[row, column]))
            integers[row, column] = np.int32(min(value, 1e9)) - INTEGER_SHIFT[column]
    for column in range(uniform.shape[1]):
        # A bounded Zipf law, taken for a continuous one and rounded down, whose inverse has a closed form.
        last = np.float64(cardinality[column] + 1)
        power = 1.0 - ZIPF_EXPONENTS[column]
        span = last**power - 1.0
        for row in range(uniform.shape[0]):
            number = (span * np.float64(uniform[row, column]) + 1.0) ** (1.0 / power)
            ranks[row, column] = min(np.int32(number) - 1, np.int32(cardinality[column] - 1))
    return integers, ranks


def label_rows(teacher: Teacher, seed: int, day: int, block: int, rows: int) -> LabelledRows:
    """Return one block of a day: rows, and labels drawn from their click probabilities."""
    features = draw_rows(teacher, seed, day, block, rows)
    # Probabilities of a fixed number of steps make histograms, and so the best possible scores, exact.
    steps = np.rint(PROBABILITY_STEPS / (1 + np.exp(-logits_of(teacher, features)))).astype(np.int64)
    steps = np.clip(steps, 1, PROBABILITY_STEPS - 1)
    # A generator of its own draws the labels, so other draws of columns do not change them.
    uniform = seeded_generator([seed, day, block, PROBABILITY_BITS]).integers(0, PROBABILITY_STEPS, rows)
    return LabelledRows(features, (uniform < steps).astype(np.int32), (steps / PROBABILITY_STEPS).astype(np.float32))


def rows_to_text(teacher: Teacher, rows: LabelledRows) -> bytes:
    """Format the rows as Criteo's TSV."""
    drawn = rows.features
    # A rank becomes a 32-bit value, distinct in its column, by MurmurHash3's finaliser.
    values = drawn.ranks.astype(np.uint32) ^ teacher.salt
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    values ^= values >> np.uint32(16)
    # A label and a line's end; an integer of 11 characters at most, a value of 8, and a tab before each.
    row_bytes = 2 + 12 * drawn.integers.shape[1] + 9 * drawn.ranks.shape[1]
    text = np.empty(len(rows.labels) * row_bytes, np.uint8)
    return text[: write_rows(rows.labels, drawn, values, text)].tobytes()


@jit
def write_rows(labels: NDArray[np.int32], rows: Rows, values: NDArray[np.uint32], text: NDArray[np.uint8]) -> Int:
    """Write lines of decimal integers and of values in hexadecimal into `text`; return their bytes."""
    end = 0
    for row in range(len(labels)):
        text[end] = ord("0") + labels[row]
        end += 1
        for column in range(rows.integers.shape[1]):
            text[end] = ord("\t")
            end += 1
            if rows.integer_present[row, column]:
                number, length = np.int64(rows.integers[row, column]), 1
                if number < 0:
                    text[end] = ord("-")
                    end, number = end + 1, -number
                while number >= 10**length:
                    length += 1
                for place in range(end + length - 1, end - 1, -1):
                    text[place] = ord("0") + number % 10
                    number //= 10
                end += length
        for column in range(values.shape[1]):
            text[end] = ord("\t")
            end += 1
            if rows.category_present[row, column]:
                for shift in range(28, -1, -4):
                    digit = values[row, column] >> shift & 15
                    text[end] = digit + (ord("0") if digit < 10 else ord("a") - 10)
                    end += 1
        text[end] = ord("\n")
        end += 1
    return end


RECORD_NAME = "synthetic.json"


def synthetic_sources(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return the days of `data.synthetic`: raw files, written unless they exist.

    If `root` holds a finished dataset, nothing outside `work` is written.
    """
    finished = sources_of_generated(data, root, row_settings(data.synthetic))
    return finished or resolve_sources(generate_days(data.synthetic, days_directory(data, root)))


def days_directory(data: DataConfig, root: Path) -> Path:
    """Return the directory of the days; refuse a data.raw that names no directory."""
    if data.raw is not None and not isinstance(data.raw, str):
        raise UserError(
            f"data.raw={data.raw}: with data.source=synthetic, give the directory to write the days to, or nothing"
        )
    return Path(data.raw) if data.raw else root / RAW_DIRECTORY


def row_settings(config: SyntheticConfig) -> Json:
    """Return the settings that decide the rows, for the manifest's `extra`."""
    return {"version": GENERATOR_VERSION, **asdict(config)}


def generate_days(config: SyntheticConfig, directory: Path) -> list[str]:
    """Write the raw days of `config` to a directory unless they exist; return their paths.

    truth_N.npy beside day_N.tsv has its click probabilities: [rows, 1] float32.
    """
    days = [directory / f"day_{day}.tsv" for day in range(config.days)]
    description, record = row_settings(config), directory / RECORD_NAME
    recorded = decode(record.read_bytes(), dict[str, Any]) if record.exists() else {}
    # The sizes are None until all days are written.
    if recorded == {"config": description, "bytes": _file_sizes(days)}:
        return [str(day) for day in days]
    if not record.exists() and any(day.exists() for day in days):
        raise UserError(f"{directory}: holds days that were not generated; name another directory in data.raw")
    directory.mkdir(parents=True, exist_ok=True)
    # A record without sizes marks days that are ours but incomplete.
    write_atomically(record, json.dumps({"config": description, "bytes": None}).encode())
    print(f"{directory}: generating {config.rows:,} synthetic rows", file=sys.stderr, flush=True)
    for day, path in enumerate(days):
        with compile_notice("the generator"):
            teacher = calibrated_teacher(config, day)
        # Write a day's rows to `path`, which appears when it is whole, and their click probabilities to `truth_path`.
        temporary = path.with_name(path.name + ".tmp")
        for left_over in path.parent.glob(f"{truth_path(path).name}.*.part"):
            left_over.unlink()
        truth = ArrayWriter(truth_path(path), np.float32, 1, day_rows(config, day))
        with open(temporary, "wb") as file:
            for text, rows in day_text(config, teacher, day, usable_cpus()):
                file.write(text)
                truth.append(rows.probability)
        truth.close()
        temporary.replace(path)
    write_atomically(record, json.dumps({"config": description, "bytes": _file_sizes(days)}, indent=1).encode())
    return [str(day) for day in days]


def _file_sizes(days: list[Path]) -> list[int | None]:
    """Return the bytes of the days' files and truths (None: missing), to tell whether they are still as written."""
    paths = [*days, *map(truth_path, days)]
    return [path.stat().st_size if path.exists() else None for path in paths]


def day_text(config: SyntheticConfig, teacher: Teacher, day: int, threads: int) -> Iterator[tuple[bytes, LabelledRows]]:
    """Yield a day block by block, as Criteo's TSV and as rows; configuration, day and block alone decide the bytes."""
    rows = day_rows(config, day)
    num_blocks = -(-rows // BLOCK_ROWS)

    def make_block(block: int) -> tuple[bytes, LabelledRows]:
        labelled = label_rows(teacher, config.seed, day, block, min(BLOCK_ROWS, rows - block * BLOCK_ROWS))
        return rows_to_text(teacher, labelled), labelled

    # Blocks depend on nothing but their number, so threads may make them in any order; they are written in order.
    with ThreadPoolExecutor(threads) as executor:
        for first in range(0, num_blocks, threads):
            yield from executor.map(make_block, range(first, min(first + threads, num_blocks)))


MLPERF_V2_TABLES = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
TABLES: dict[str, Any] = {MLPERF_V2: MLPERF_V2_TABLES, "criteo_kaggle": KAGGLE_CARDINALITIES}
ZIPF_VERSION = 2  # version of zipf's ids; version 1 rounded a continuous law's numbers down
DEFAULT_EXPONENTS = {IdDistribution.zipf: 1.05, IdDistribution.pareto: 0.25}


class RandomRows:
    """A data_prep.stages.write.Generator; keys, split and first row determine a shard."""

    def __init__(self, config: RandomConfig, threads: int) -> None:
        """Raise UserError for invalid values."""
        tables: Any = TABLES.get(config.tables) if isinstance(config.tables, str) else config.tables
        if not tables or not all(isinstance(rows, int) and 1 <= rows <= MAX_TABLE_ROWS for rows in tables):
            known = " or ".join(TABLES)
            raise UserError(f"data.random.tables={config.tables}: give the rows of every table, or {known}")
        if config.distribution is IdDistribution.zipf and config.exponent == 1:
            raise UserError("data.random.exponent=1: zipf cannot have 1 itself; give one beside it, such as 1.05")
        limit = config.max_rows_per_table or MAX_TABLE_ROWS
        self._tables = [min(rows, limit) for rows in tables]
        sizes = config.bag_sizes
        sizes = [sizes] * len(self._tables) if isinstance(sizes, int) else sizes
        # The maximum if bags vary.
        self._bag_sizes = parse_sizes("data.random.bag_sizes", sizes, len(self._tables))
        self._config = config
        self._threads = threads
        names = [f"cat_{i}" for i in range(len(self._tables))]
        self._is_ragged = [config.bags_vary or size != 1 for size in self._bag_sizes]
        dense = tuple(f"int_{i}" for i in range(config.num_dense))
        ragged = tuple(name for name, is_ragged in zip(names, self._is_ragged, strict=True) if is_ragged)
        self.schema = Schema("label", dense, tuple(names), ragged)
        self.num_embeddings = dict(zip(names, self._tables, strict=True))
        settings = to_json(config)
        if config.distribution is IdDistribution.zipf:
            settings["version"] = ZIPF_VERSION
        self.encoding: dict[str, Any] = {"name": "random", "random": settings}
        self.rows = dict(zip(SPLITS, (config.rows, config.eval_rows, config.eval_rows), strict=True))
        # Four bytes for each field, and eight for the offset of each bag.
        self.row_bytes = 4.0 * (1 + config.num_dense + sum(self._bag_sizes)) + 8.0 * sum(self._is_ragged)

    def shard(self, split: str, start: int, rows: int) -> ShardArrays:
        """Return `rows` rows of a split from row `start` on: sparse [rows, one-hot features], and the others' bags."""
        # The first row belongs to the key, so a shard does not depend on the shards before it.
        key = [self._config.seed, SPLITS.index(split), start]

        def draw_bags(feature: int) -> Bags:
            """Draw a feature's ids; a feature with single values has bags of one id."""
            rng, size = seeded_generator([*key, 1 + feature]), self._bag_sizes[feature]
            offsets = offsets_of(rng.integers(1, size + 1, rows) if self._config.bags_vary else np.full(rows, size))
            return Bags(draw_ids(rng, self._config, self._tables[feature], int(offsets[-1])), offsets)

        rng = seeded_generator([*key, 0])
        labels = (rng.random((rows, 1)) < self._config.click_rate).astype(np.int32)
        dense = rng.random((rows, self._config.num_dense), np.float32)
        with ThreadPoolExecutor(self._threads) as executor:
            columns = list(executor.map(draw_bags, range(len(self._tables))))
        one_hot = [c.values for c, ragged in zip(columns, self._is_ragged, strict=True) if not ragged]
        bags = tuple(c for c, ragged in zip(columns, self._is_ragged, strict=True) if ragged)
        sparse = np.stack(one_hot, axis=1) if one_hot else np.empty((rows, 0), np.int32)
        return ShardArrays(labels, dense, sparse, bags)


def draw_ids(rng: np.random.Generator, config: RandomConfig, table_rows: int, count: int) -> NDArray[np.int32]:
    """Draw `count` ids from 0 to table_rows - 1, [count] int32, by the configured distribution."""
    if config.distribution is IdDistribution.uniform:
        return rng.integers(0, table_rows, count, np.int32)
    exponent = config.exponent or DEFAULT_EXPONENTS[config.distribution]
    if config.distribution is IdDistribution.pareto:
        # The tail of a Pareto law exceeds int64, whose conversion is undefined.
        return (np.minimum(rng.pareto(exponent, count), 2.0**62).astype(np.int64) % table_rows).astype(np.int32)
    return _zipf_ids(rng, exponent, table_rows, count)


def _zipf_ids(rng: np.random.Generator, exponent: float, table_rows: int, count: int) -> NDArray[np.int32]:
    """Draw ids [count]; id k has exactly a probability in proportion to (k + 1) ** -exponent.

    Rejection-inversion after Hörmann and Derflinger (1996), for tables of any size. A number x from the continuous law
    is rounded to k. It is drawn again if it lies in the part of [k - 1/2, k + 1/2] that exceeds the probability of k.
    """
    power = 1.0 - exponent

    def area(x: Any) -> Any:
        """Return the integral of t ** -exponent from 1 to x."""
        return (x**power - 1.0) / power

    def inverse_area(y: Any) -> Any:
        return (1.0 + y * power) ** (1.0 / power)

    first, last = area(1.5) - 1.0, area(table_rows + 0.5)
    # A number x this close below k, or closer, is always accepted.
    acceptance_bound = 2.0 - inverse_area(area(2.5) - 2.0**-exponent)
    ids, remaining = np.empty(count, np.int32), np.arange(count)
    while len(remaining):
        drawn_area = last + rng.random(len(remaining)) * (first - last)
        x = inverse_area(drawn_area)
        k = np.clip(np.rint(x), 1, table_rows)
        is_accepted = (k - x <= acceptance_bound) | (drawn_area >= area(k + 0.5) - k**-exponent)
        ids[remaining[is_accepted]] = k[is_accepted].astype(np.int64) - 1
        remaining = remaining[~is_accepted]
    return ids
