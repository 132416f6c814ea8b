"""Kinds of datasets: rows, and those that extensions add; sources of raw files, whose names are in options.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from data_prep.config.keys import DataConfig
    from data_prep.dataset.manifest import Manifest
    from data_prep.dataset.manifest_schema import Document


class KindParts(NamedTuple):
    """What an extension does for its kind of dataset where the core's modules do it for rows.

    Attributes:
        prepare: makes the dataset of raw files at a directory.
        verify: compares the arrays at a directory with the manifest. Raises UserError.
        fault: the first error in a manifest's document; None if there is none. Raises ValueError for wrong types.
    """

    prepare: Callable[[DataConfig, Path], Manifest]
    verify: Callable[[Path, Manifest], None]
    fault: Callable[[Document], str | None]


@dataclass(frozen=True)
class DatasetKind:
    """What is known of a kind of dataset before its modules are imported.

    Attributes:
        name: what it holds, for readers; of an extension's kind the encoding's name in a manifest, too.
        remedy: what to give instead of a dataset of another kind.
        parts: imports its modules and returns what they do; None: the core's modules, for rows.
        arrays: names of a shard's arrays; empty: those of rows.
        splits: of the dataset on disk, beside train, val and test.
        windows: splits that a reader makes, as windows of time; empty: splits are on disk, row by row with labels.
        described_by: keys of a YAML schema of which one says that it describes this kind.
    """

    name: str
    remedy: str
    parts: Callable[[], KindParts] | None = None
    arrays: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    described_by: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SourceKind:
    """What is known of a source of raw rows; functions are text, "module:function", or an extension's own.

    Attributes:
        makes: the kind of its datasets; None: the files are the user's own, and their schema says.
        find: the function that makes or fetches the raw files, of DataConfig and the directories of dataset and job.
        directory: the function that says where it does, of DataConfig and the dataset's directory.
        group: the keys of `data` that it reads and most others do not.
        generator: the class that makes shards without raw files, of these keys and a number of threads.
        figures: the function that gives what the manifest's `extra` has of generated rows, of DataConfig and, of rows,
            job, chunks and rows of each split, of another kind, the dataset's directory.
        files: keys of the group that name files, which manifests know by their SHA-256 alone.
    """

    makes: DatasetKind | None = None
    find: str | Callable[..., Any] = ""
    directory: str = "data_prep.sources.remote:raw_directory"
    group: str = ""
    generator: str | Callable[..., Any] = ""
    figures: str | Callable[..., Any] = ""
    files: tuple[str, ...] = ()


class NamedSource(NamedTuple):
    """A source that an extension adds to those of data_prep/dataset/options.py."""

    name: str
    kind: SourceKind


ROWS = DatasetKind("rows", "give a dataset of rows in its place")


def dataset_kinds() -> list[DatasetKind]:
    """Rows and the extensions' kinds."""
    return [ROWS, *rows_of_extensions(DatasetKind)]


def kind_of(encoding: str | None) -> DatasetKind:
    """The kind of a dataset, by its encoding's name."""
    return next((kind for kind in dataset_kinds() if kind.parts is not None and kind.name == encoding), ROWS)


def described_kind(schema: Any) -> DatasetKind:
    """The kind of dataset that the content of a YAML schema describes."""
    keys = set(schema) if isinstance(schema, dict) else set()
    return next((kind for kind in dataset_kinds() if kind.described_by & keys), ROWS)


def split_directories() -> list[str]:
    """Directories of splits that a dataset of any kind may have."""
    return ["train", "val", "test", *(split for kind in dataset_kinds() for split in kind.splits)]
