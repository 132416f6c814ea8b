"""Criteo-like raw days whose best possible score is known (see data_prep/teacher.py)."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.config import SyntheticConfig, usable_cpus
from data_prep.format import write_atomically
from data_prep.jit import compile_notice, jit
from data_prep.schema import CRITEO_NUM_DENSE, CRITEO_NUM_SPARSE
from data_prep.teacher import (
    PROBABILITY_BITS,
    PROBABILITY_STEPS,
    Teacher,
    bayes_scores,
    category_ranks,
    integers_from_normal,
    make_teacher,
    teacher_logits,
)

BLOCK_ROWS = 1 << 14
CALIBRATION_ROWS = 1 << 16
CALIBRATION_DAY = 2**31 - 1  # its random numbers are those of no real day
MAX_ROW_BYTES = 2 + CRITEO_NUM_DENSE * 12 + CRITEO_NUM_SPARSE * 9
RECORD_NAME = "synthetic.json"
GENERATOR_VERSION = 1
HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


class RawBlock(NamedTuple):
    """Rows as text, and histogram[i] of their click probabilities, i / PROBABILITY_STEPS."""

    text: bytes
    histogram: NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows before they have labels; present: not missing."""

    integers: NDArray[np.int32]
    integer_present: NDArray[np.bool_]
    ranks: NDArray[np.int32]
    category_present: NDArray[np.bool_]
    logits: NDArray[np.float64]


def generate_days(config: SyntheticConfig, root: Path, raw: Any = None) -> tuple[list[str], dict[str, float]]:
    """Write the raw days of `config`, unless they are there already.

    Args:
        root: the dataset's directory; days go to its raw/ unless `raw` names a directory.

    Returns:
        their paths, and the scores of the best possible model as a dictionary (see BayesScores).
    """
    if raw is not None and not isinstance(raw, str):
        raise UserError(f"data.raw={raw}: with data=synthetic, give the directory to write the days to, or nothing")
    directory = Path(raw) if raw else root / "raw"
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: not a directory; with data=synthetic, data.raw is where the days are written")
    days = [directory / f"day_{day}.tsv" for day in range(config.days)]
    wanted = {"version": GENERATOR_VERSION, **asdict(config)}
    record = directory / RECORD_NAME
    if record.exists():
        found = json.loads(record.read_bytes())
        sizes = [day.stat().st_size if day.exists() else None for day in days]
        if found["config"] == wanted and found["bytes"] == sizes:
            return [str(day) for day in days], found["bayes"]
    elif any(day.exists() for day in days):
        raise UserError(f"{directory}: holds days that were not generated; name another directory in data.raw")
    directory.mkdir(parents=True, exist_ok=True)
    # A record without sizes: the days are ours, and not all there.
    write_atomically(record, json.dumps({"config": wanted, "bytes": None}).encode())
    print(f"{directory}: generating {config.rows:,} synthetic rows", file=sys.stderr, flush=True)
    with compile_notice("the generator"):
        teacher = calibrated_teacher(config)
    histogram = np.zeros(PROBABILITY_STEPS, np.int64)
    for day, path in enumerate(days):
        _write_day(config, teacher, day, path, histogram)
    bayes = asdict(bayes_scores(histogram))
    sizes = [day.stat().st_size for day in days]
    write_atomically(record, json.dumps({"config": wanted, "bytes": sizes, "bayes": bayes}, indent=1).encode())
    return [str(day) for day in days], bayes


def calibrated_teacher(config: SyntheticConfig) -> Teacher:
    """The teacher with the intercept that gives the click rate asked for, found by bisection on a sample."""
    teacher = make_teacher(config.seed, config.max_cardinality)
    logits = draw_rows(teacher, config.seed, CALIBRATION_DAY, 0, CALIBRATION_ROWS).logits
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.mean(1 / (1 + np.exp(-(logits + middle)))) < config.click_rate:
            low = middle
        else:
            high = middle
    return teacher._replace(intercept=np.array([low]))


def day_rows(config: SyntheticConfig, day: int) -> int:
    """Rows of a day: equal shares, the first days taking the remainder."""
    return config.rows // config.days + (day < config.rows % config.days)


def day_blocks(config: SyntheticConfig, teacher: Teacher, day: int, threads: int) -> Iterator[RawBlock]:
    """A day block by block; each block's bytes depend on (seed, day, block) alone."""
    rows = day_rows(config, day)
    starts = range(0, rows, BLOCK_ROWS)
    blocks = [(block, min(BLOCK_ROWS, rows - start)) for block, start in enumerate(starts)]
    with ThreadPoolExecutor(threads) as executor:
        for first in range(0, len(blocks), threads):
            group = blocks[first : first + threads]
            yield from executor.map(lambda item: make_block(teacher, config.seed, day, *item), group)


def _write_day(config: SyntheticConfig, teacher: Teacher, day: int, path: Path, histogram: NDArray[np.int64]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        for block in day_blocks(config, teacher, day, usable_cpus()):
            file.write(block.text)
            histogram += block.histogram
    temporary.replace(path)


def draw_rows(teacher: Teacher, seed: int, day: int, block: int, rows: int) -> Rows:
    """Random rows and their logits."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, day, block])))
    integers = np.empty((rows, CRITEO_NUM_DENSE), np.int32)
    ranks = np.empty((rows, CRITEO_NUM_SPARSE), np.int32)
    logits = np.empty(rows)
    normal = rng.standard_normal(integers.shape, np.float32)
    integers_from_normal(normal, teacher.log_mean, teacher.log_deviation, teacher.shift, integers)
    category_ranks(rng.random(ranks.shape, np.float32), teacher.cardinality, teacher.exponent, ranks)
    integer_present = rng.random(integers.shape, np.float32) >= teacher.integer_missing
    category_present = rng.random(ranks.shape, np.float32) >= teacher.category_missing
    teacher_logits(teacher, integers, integer_present, ranks, category_present, logits)
    return Rows(integers, integer_present, ranks, category_present, logits)


def make_block(teacher: Teacher, seed: int, day: int, block: int, rows: int) -> RawBlock:
    """One block of a day."""
    drawn = draw_rows(teacher, seed, day, block, rows)
    steps = np.rint(PROBABILITY_STEPS / (1 + np.exp(-drawn.logits))).astype(np.int64)
    steps = np.clip(steps, 1, PROBABILITY_STEPS - 1)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, day, block, PROBABILITY_BITS])))
    labels = (rng.integers(0, PROBABILITY_STEPS, rows) < steps).astype(np.uint8)
    text = np.empty(rows * MAX_ROW_BYTES, np.uint8)
    length = write_rows(
        labels,
        drawn.integers,
        drawn.integer_present,
        drawn.ranks,
        drawn.category_present,
        teacher.salt,
        HEX_DIGITS,
        text,
    )
    return RawBlock(text[:length].tobytes(), np.bincount(steps, minlength=PROBABILITY_STEPS))


@jit
def category_value(rank, salt):  # type: ignore[no-untyped-def]
    """A 32-bit value for each rank, different for different ranks (MurmurHash3's finaliser, a bijection)."""
    value = np.uint32(rank) ^ salt
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return value ^ (value >> np.uint32(16))


@jit
def _write_integer(value, text, position):  # type: ignore[no-untyped-def]
    """Write a decimal integer; the position behind it."""
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
    for place in range(position + length - 1, position - 1, -1):
        text[place] = 48 + number % 10
        number //= 10
    return position + length


@jit
def write_rows(labels, integers, integer_present, ranks, category_present, salt, digits, text):  # type: ignore[no-untyped-def]
    """Write rows as Criteo's TSV into `text`; the number of bytes."""
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
