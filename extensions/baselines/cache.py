"""Cache of computed baselines, beside the dataset or, if that is not writable, in the run."""

import base64
import importlib.metadata
import logging
import os
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from common.documents import encode, read_document
from common.errors import UserError
from common.files import write_atomically
from data_prep.dataset.format import Manifest
from data_prep.dataset.sample import sampled_numbers
from extensions.baselines.documents import Baselines
from extensions.baselines.keys import BaselinesConfig
from extensions.baselines.rows import SAMPLE_ROWS, load_rows

log = logging.getLogger("clickwork")

CACHE = ".baselines.json"
VERSION = 2  # increase it with each change of the figures that extensions/baselines computes
LIBRARIES = ("scikit-learn", "lightgbm")
INSTALL = "pip install scikit-learn"


class Scored(Struct):
    """Baselines, and how each of them ranks the rows of `numbers_of`.

    ranks: by name, the ranks [n] int32 of the predictions, as base64. AUC and its test need no more.
    """

    figures: Baselines
    ranks: dict[str, str]

    def ranks_of(self, name: str) -> NDArray[np.int32]:
        """Return the ranks [n] of a baseline's predictions; equal ranks are ties."""
        return np.frombuffer(base64.b64decode(self.ranks[name]), "<i4")


class _Cache(Struct):
    """Baselines of one dataset by the settings that decide them."""

    dataset: str
    baselines: dict[str, Scored]


def numbers_of(manifest: Manifest, split: str, rows: int | None) -> NDArray[np.int64]:
    """Return the numbers of the rows on which baselines and a run's model are compared.

    These rows are in the sample of SAMPLE_ROWS whose scores a run keeps, and in the sample of `rows` for baselines.
    """
    shard_rows = [shard.rows for shard in manifest.splits[split].shards]
    kept = sampled_numbers(shard_rows, SAMPLE_ROWS)
    return kept if rows == SAMPLE_ROWS else np.intersect1d(kept, sampled_numbers(shard_rows, rows), assume_unique=True)


def computed(root: Path, manifest: Manifest, split: str, directory: Path, config: BaselinesConfig) -> Scored:
    """Return the baselines of a dataset, scored on a split, from the cache or newly computed."""
    versions = [f"{name} {version}" for name in LIBRARIES if (version := _version(name)) is not None]
    if not versions or not versions[0].startswith(LIBRARIES[0]):
        raise UserError(f"baselines: scikit-learn is not installed; {INSTALL}")
    largest = max(manifest.splits[name].rows for name in {"train", split} & set(manifest.splits))
    rows = None if config.rows is None or config.rows >= largest else config.rows
    key = " ".join([split, f"rows={rows}", f"version={VERSION}", *versions])
    places = [root / CACHE, directory / CACHE]
    previous_cache = next((cache for place in places if (cache := _read(place, manifest.digest)) is not None), None)
    if previous_cache is not None and key in previous_cache.baselines:
        return previous_cache.baselines[key]

    from extensions.baselines.fit import fit_baselines  # imports scikit-learn, which takes seconds

    train, others = (load_rows(root, manifest, name, rows) for name in ("train", split))
    names = [*manifest.schema["dense"], *manifest.schema["sparse"]]
    baselines, preds = fit_baselines(train, others, names, config.seconds)
    baselines.split = split
    shard_rows = [shard.rows for shard in manifest.splits[split].shards]
    is_compared = np.isin(sampled_numbers(shard_rows, rows), numbers_of(manifest, split, rows), assume_unique=True)
    scored = Scored(baselines, {name: _ranks(values[is_compared]) for name, values in preds.items()})
    if baselines.is_whole:  # otherwise another attempt may have enough time
        other_baselines = {} if previous_cache is None else previous_cache.baselines
        cache = _Cache(manifest.digest, {**other_baselines, key: scored})
        write_atomically(places[0] if os.access(root, os.W_OK) else places[1], encode(cache).encode())
    return scored


def _ranks(preds: NDArray[np.float64]) -> str:
    return base64.b64encode(np.unique(preds, return_inverse=True)[1].astype("<i4").tobytes()).decode()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path, digest: str) -> _Cache | None:
    """Read the cache if it belongs to this dataset; a damaged one is written again."""
    try:
        cache = read_document(path, _Cache, "remove it")
    except (FileNotFoundError, UserError):
        return None
    return cache if cache.dataset == digest else None
