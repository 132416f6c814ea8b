"""Baselines that were computed before: beside the dataset, or in the run where that cannot be written."""

import importlib.metadata
import logging
import os
from pathlib import Path

from msgspec import Struct

from app.baselines.rows import load_rows
from app.config.commands import BaselinesConfig
from app.record.documents import Baselines
from common.documents import encode, read_document
from common.errors import UserError
from common.files import write_atomically
from data_prep.dataset.format import Manifest

log = logging.getLogger("clickwork")

CACHE = ".baselines.json"
VERSION = 1  # of our own figures: a change of them in app/baselines is one more
LIBRARIES = ("scikit-learn", "lightgbm")
INSTALL = "pip install scikit-learn"


class _Cache(Struct):
    """Baselines by what decides them, of one dataset."""

    dataset: str
    baselines: dict[str, Baselines]


def computed(root: Path, manifest: Manifest, split: str, directory: Path, config: BaselinesConfig) -> Baselines:
    """The baselines of a dataset, scored on a split: from the cache, or computed and kept there.

    Raises:
        UserError: as `load_rows` does; scikit-learn is not installed.
    """
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

    from app.baselines.fit import fit_baselines  # with scikit-learn, which takes seconds

    train, others = (load_rows(root, manifest, name, rows) for name in ("train", split))
    names = [*manifest.schema["dense"], *manifest.schema["sparse"]]
    baselines = fit_baselines(train, others, names, config.seconds)
    baselines.split = split
    if baselines.is_whole:  # else another attempt may have the time
        other_baselines = {} if previous_cache is None else previous_cache.baselines
        cache = _Cache(manifest.digest, {**other_baselines, key: baselines})
        write_atomically(places[0] if os.access(root, os.W_OK) else places[1], encode(cache).encode())
    return baselines


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path, digest: str) -> _Cache | None:
    """The cache, if it is of this dataset; a damaged one is written anew."""
    try:
        cache = read_document(path, _Cache, "remove it")
    except (FileNotFoundError, UserError):
        return None
    return cache if cache.dataset == digest else None
