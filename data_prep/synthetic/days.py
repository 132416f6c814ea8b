"""Generated days, written as raw files or only described, so that their rows are generated where they are used."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from common.documents import Json, decode
from common.errors import UserError
from common.files import write_atomically
from common.jit import compile_notice
from common.limits import usable_cpus
from data_prep.config.keys import DataConfig, SyntheticConfig
from data_prep.io.arrays import ArrayWriter
from data_prep.parsing.criteo import Block
from data_prep.sources.discover import RAW_DIRECTORY, Source, resolve_sources
from data_prep.sources.finished import finished_manifest, sources_of_generated
from data_prep.synthetic.bayes_scores import truth_path
from data_prep.synthetic.rows import (
    BLOCK_ROWS,
    LabelledRows,
    as_block,
    as_text,
    block_sizes,
    calibrated_teacher,
    day_rows,
    generator_version,
    label_rows,
)
from data_prep.synthetic.teacher import Teacher

RECORD_NAME = "synthetic.json"
DESCRIPTIONS = "generated"


def synthetic_sources(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return the days of `data.synthetic`: raw files, written unless they exist, or their descriptions.

    If `root` holds a finished dataset, nothing outside `work` is written.
    """
    config, directory = data.synthetic, raw_directory(data, root)
    existing = finished_manifest(data, root)
    if existing is not None:
        return sources_of_generated(data, root, existing, described(config))
    if config.direct:
        return _describe_days(config, directory)
    return resolve_sources(generate_days(config, root, str(directory)))


def raw_directory(data: DataConfig, root: Path) -> Path:
    """Return the directory of the days or of their descriptions."""
    if data.synthetic.direct:
        if data.raw is not None:
            raise UserError(f"data.raw={data.raw}: has no effect with data.synthetic.direct; no raw files are written")
        return root / DESCRIPTIONS
    if data.raw is not None and not isinstance(data.raw, str):
        raise UserError(
            f"data.raw={data.raw}: with data.source=synthetic, give the directory to write the days to, or nothing"
        )
    return Path(data.raw) if data.raw else root / RAW_DIRECTORY


def described(config: SyntheticConfig) -> Json:
    """Return the settings that decide the rows, for the manifest's `extra`."""
    return {"version": generator_version(config), **asdict(config)}


def _describe_days(config: SyntheticConfig, directory: Path) -> list[Source]:
    """Write a small file for each day that determines its rows, in place of the raw file."""
    sources = []
    for day in range(config.days):
        path = directory / f"day_{day}.json"
        content = json.dumps({"version": generator_version(config), "day": day, **asdict(config)}).encode()
        if not path.exists() or path.read_bytes() != content:
            write_atomically(path, content)
        [source] = resolve_sources(str(path))
        sources.append(replace(source, generator=DescribedDay(str(path), day_rows(config, day))))
    return sources


class _Day(Struct):
    """Number of a described day; its file also holds the keys of its configuration."""

    day: int


class _Record(Struct):
    """Settings and file sizes of written days; None until all days are written."""

    config: Json
    bytes: list[int | None] | None


@lru_cache(maxsize=1)
def _described(content: bytes) -> tuple[SyntheticConfig, int, Teacher]:
    """Parse a day's description. The last result is cached, since a process handles a day's chunks in turn."""
    config, day = decode(content, SyntheticConfig), decode(content, _Day).day
    return config, day, calibrated_teacher(config, day)


@dataclass(frozen=True)
class DescribedDay:
    """A RowGenerator (see data_prep.sources.discover) for the day that the file at `path` describes."""

    path: str
    rows: int
    block_rows: int = BLOCK_ROWS

    def blocks(self, first: int, stop: int) -> Iterator[tuple[Block, NDArray[np.float32]]]:
        """Yield the blocks first to stop - 1 as parsed, with the click probabilities of their rows."""
        config, day, teacher = _described(Path(self.path).read_bytes())
        sizes = block_sizes(day_rows(config, day))
        for block in range(first, min(stop, len(sizes))):
            rows = label_rows(teacher, config.seed, day, block, sizes[block])
            yield as_block(teacher, rows), rows.probability


def generate_days(config: SyntheticConfig, root: Path, raw: str | None = None) -> list[str]:
    """Write the raw days of `config` unless they exist.

    Args:
        root: the dataset's directory; days go to its raw/ unless `raw` names a directory.

    Returns:
        The days' paths. truth_N.npy beside day_N.tsv has its click probabilities: [rows, 1] float32.
    """
    directory = Path(raw) if raw else root / RAW_DIRECTORY
    if directory.exists() and not directory.is_dir():
        raise UserError(
            f"{directory}: not a directory; with data.source=synthetic, data.raw is where the days are written"
        )
    days, description, record = _days(config, directory), described(config), directory / RECORD_NAME
    if _are_there(config, directory):
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
        _write_day(config, teacher, day, path)
    write_atomically(record, json.dumps({"config": description, "bytes": _sizes(days)}, indent=1).encode())
    return [str(day) for day in days]


def _days(config: SyntheticConfig, directory: Path) -> list[Path]:
    return [directory / f"day_{day}.tsv" for day in range(config.days)]


def _are_there(config: SyntheticConfig, directory: Path) -> bool:
    record = directory / RECORD_NAME
    if not record.exists():
        return False
    recorded = decode(record.read_bytes(), _Record)
    return recorded.config == described(config) and recorded.bytes == _sizes(_days(config, directory))


def _sizes(days: list[Path]) -> list[int | None]:
    """Return the bytes of the days and their truths; None for a missing file."""
    paths = [*days, *map(truth_path, days)]
    return [path.stat().st_size if path.exists() else None for path in paths]


def _write_day(config: SyntheticConfig, teacher: Teacher, day: int, path: Path) -> None:
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


def day_text(config: SyntheticConfig, teacher: Teacher, day: int, threads: int) -> Iterator[tuple[bytes, LabelledRows]]:
    """Yield a day block by block. A block's bytes depend on configuration, day and block alone."""
    sizes = block_sizes(day_rows(config, day))

    def make(block: int) -> tuple[bytes, LabelledRows]:
        rows = label_rows(teacher, config.seed, day, block, sizes[block])
        return as_text(teacher, rows), rows

    with ThreadPoolExecutor(threads) as executor:
        for first in range(0, len(sizes), threads):
            yield from executor.map(make, range(first, min(first + threads, len(sizes))))
