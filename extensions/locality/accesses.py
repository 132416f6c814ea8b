"""Accesses to tables, from a dataset's rows or text files, and their profiles."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.format import MANIFEST_NAME, ShardArrays, load_rows_manifest, open_shard
from data_prep.sources.discover import resolve_sources
from extensions.locality.histogram import Profiler, TableProfile, load_profiles

PIECE_ROWS = 1 << 16
SEPARATORS = re.compile(rb"[\s,;]+")


def profile_accesses(source: Any, split: str, threads: int, exact: bool = False) -> tuple[dict[str, TableProfile], int]:
    """Return the profiles of all tables by name, and the number of samples.

    Args:
        source: a dataset's directory, a profile (.npz), or text files, one per table, named as in `data.raw`.
        split: split of a dataset.
        exact: also count each stack distance separately, if the accesses are available.

    Raises:
        UserError: there is nothing to profile.
    """
    if isinstance(source, str) and (Path(source) / MANIFEST_NAME).is_file():
        return _profile_dataset(Path(source), split, threads, exact)
    if isinstance(source, str) and source.endswith(".npz"):
        return load_profiles(Path(source))
    return _profile_text(source, threads, exact)


def _profile_dataset(root: Path, split: str, threads: int, exact: bool) -> tuple[dict[str, TableProfile], int]:
    manifest = load_rows_manifest(root)
    if split not in manifest.splits:
        raise UserError(f"{root}: no split {split!r}; it has {', '.join(manifest.splits)}")
    names = manifest.schema["sparse"]
    profilers = {name: Profiler(manifest.num_embeddings[name], exact) for name in names}
    one_hot = [name for name in names if name not in manifest.ragged]
    with ThreadPoolExecutor(threads) as executor:
        for shard in manifest.splits[split].shards:
            arrays = open_shard(root, split, shard, manifest)
            for start in range(0, shard.rows, PIECE_ROWS):
                stop = min(start + PIECE_ROWS, shard.rows)
                columns = _columns(arrays, one_hot, manifest.ragged, start, stop)
                list(executor.map(lambda item: profilers[item[0]].feed(*item[1]), columns.items()))
    return {name: profiler.profile for name, profiler in profilers.items()}, manifest.splits[split].rows


def _columns(
    arrays: ShardArrays, one_hot: list[str], ragged: list[str], start: int, stop: int
) -> dict[str, tuple[NDArray[Any], NDArray[np.int64] | None]]:
    """Return the ids and bag lengths (None: one id each) of each feature, in rows start to stop."""
    sparse = np.ascontiguousarray(arrays.sparse[start:stop].T)
    columns: dict[str, tuple[NDArray[Any], NDArray[np.int64] | None]] = {
        name: (ids, None) for name, ids in zip(one_hot, sparse, strict=True)
    }
    for name, bags in zip(ragged, arrays.bags, strict=True):
        part = bags.part(start, stop)
        columns[name] = (np.asarray(part.ids), part.lengths)
    return columns


def _profile_text(source: Any, threads: int, exact: bool) -> tuple[dict[str, TableProfile], int]:
    paths = [Path(source_file.path) for source_file in resolve_sources(source)]
    names = [path.name.split(".")[0] for path in paths]
    if len(set(names)) != len(names):
        raise UserError(f"locality.trace: two of the files are named {max(names, key=names.count)}; give them names")
    with ThreadPoolExecutor(threads) as executor:
        profiles = list(executor.map(lambda path: _profile_file(path, exact), paths))
    return dict(zip(names, profiles, strict=True)), max(profile.accesses for profile in profiles)


def _profile_file(path: Path, exact: bool) -> TableProfile:
    ids = read_text_trace(path)
    values, numbered = np.unique(ids, return_inverse=True)
    profiler = Profiler(len(values), exact)
    profiler.feed(numbered.astype(np.int32))
    return profiler.profile


def read_text_trace(path: Path) -> NDArray[np.int64]:
    """Read whole numbers separated by spaces, commas, semicolons or line ends, in the order of accesses.

    Raises:
        UserError: a word that is not a whole number of 64 bits, or no words.
    """
    words = [word for word in SEPARATORS.split(path.read_bytes()) if word]
    if not words:
        raise UserError(f"{path}: no ids in it; a text trace holds whole numbers")
    try:
        return np.array(words).astype(np.int64)
    except (ValueError, OverflowError):
        for number, word in enumerate(words, start=1):
            if not re.fullmatch(rb"[+-]?\d{1,18}", word):
                message = f"{path}: access {number}: {word[:40].decode(errors='replace')!r} is not a whole number"
                raise UserError(f"{message}; correct it") from None
        raise
