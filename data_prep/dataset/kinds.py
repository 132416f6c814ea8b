"""Kinds of datasets and sources, including those of extensions. options.py lists the core's sources by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from data_prep.config.keys import DataConfig
    from data_prep.dataset.manifest import Manifest
    from data_prep.dataset.manifest_schema import Document
    from data_prep.sources.discover import Source


class KindParts(NamedTuple):
    """Functions by which an extension replaces the core's code for rows.

    Attributes:
        prepare: makes the dataset from raw files, in the given directory.
        verify: compares the arrays in a directory with the manifest. Raises UserError for a difference.
        fault: returns the first error in a manifest's document, or None. Raises ValueError for wrong types.
    """

    prepare: Callable[[DataConfig, Path], Manifest]
    verify: Callable[[Path, Manifest], None]
    fault: Callable[[Document], str | None]


@dataclass(frozen=True)
class DatasetKind:
    """Properties of a kind of dataset that the core reads without importing the kind's modules.

    Attributes:
        name: its contents, for messages; for an extension's kind also the name of the encoding in a manifest.
        remedy: remedy if a dataset of another kind is required.
        parts: imports the extension's modules and returns their functions; None for rows.
        arrays: names of a shard's arrays; empty: the arrays of rows.
        splits: directories of splits besides train, val and test.
        windows: splits that the reader cuts by time; empty: the splits on disk hold labelled rows.
        described_by: keys of a YAML schema; a schema with any of them describes this kind.
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
    """Properties of a source of raw rows. The core names functions as text, "module:function"; extensions give them.

    Attributes:
        makes: the kind of its datasets; None: the schema of the user's files decides.
        find: makes or fetches the raw files; takes DataConfig and the directories of dataset and job.
        directory: returns the directory of the raw files; takes DataConfig and the dataset's directory.
        group: the group of keys below `data` for this source.
        generator: class that makes shards without raw files; takes the group of keys and a number of threads.
        figures: returns the entries of the manifest's `extra` for generated rows. Takes DataConfig and, for rows, the
            job, the chunks and the number of rows of each split; for another kind, the dataset's directory.
        files: keys of the group that name files; manifests identify these files by SHA-256 alone.
    """

    makes: DatasetKind | None = None
    find: str | Callable[..., Any] = ""
    directory: str = "data_prep.sources.remote:raw_directory"
    group: str = ""
    generator: str | Callable[..., Any] = ""
    figures: str | Callable[..., Any] = ""
    files: tuple[str, ...] = ()


class NamedSource(NamedTuple):
    """A source of an extension; options.py lists the core's sources."""

    name: str
    kind: SourceKind


class SchemaProposer(NamedTuple):
    """The proposer of a schema for `data.schema=auto`, in an extension.

    propose: returns the YAML of a table's schema; takes the files of train and `data.label`. Raises UserError.
    """

    propose: Callable[[Sequence[Source], str | None], str]


ROWS = DatasetKind("rows", "give a dataset of rows in its place")


def dataset_kinds() -> list[DatasetKind]:
    """Return the rows kind and the kinds of the extensions."""
    return [ROWS, *rows_of_extensions(DatasetKind)]


def kind_of(encoding: str | None) -> DatasetKind:
    """Return the kind of a dataset by the name of its encoding."""
    return next((kind for kind in dataset_kinds() if kind.parts is not None and kind.name == encoding), ROWS)


def described_kind(schema: Any) -> DatasetKind:
    """Return the kind of dataset that the content of a YAML schema describes."""
    keys = set(schema) if isinstance(schema, dict) else set()
    return next((kind for kind in dataset_kinds() if kind.described_by & keys), ROWS)


def split_directories() -> list[str]:
    """Return the names of all split directories, over all kinds of datasets."""
    return ["train", "val", "test", *(split for kind in dataset_kinds() for split in kind.splits)]
