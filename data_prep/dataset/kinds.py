"""Kinds of datasets and sources, one row each; parts that extensions add to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from common.documents import Json
    from data_prep.config import DataConfig
    from data_prep.dataset.format import Manifest
    from data_prep.job import Job
    from data_prep.sources.files import Source
    from data_prep.stages.write import BuiltShard


@dataclass(frozen=True)
class DatasetKind:
    """Properties of a kind of dataset that the core reads without importing the kind's modules.

    Attributes:
        name: its contents, for messages; for an extension's kind also the name of the encoding in a manifest.
        remedy: remedy if a dataset of another kind is required.
        prepare, verify, fault: an extension's functions in place of the core's for rows, which have None: makes the
            dataset from raw files, in the given directory; compares the arrays in a directory with the manifest, and
            raises UserError for a difference; returns the first error in a manifest, or None, and raises ValueError
            for wrong types.
        splits: directories of splits besides train, val and test.
        windows: splits that the reader cuts by time; empty: the splits on disk hold labelled rows.
        described_by: keys of a YAML schema; a schema with any of them describes this kind.
    """

    name: str
    remedy: str
    prepare: Callable[[DataConfig, Path], Manifest] | None = None
    verify: Callable[[Path, Manifest], None] | None = None
    fault: Callable[[Manifest], str | None] | None = None
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
    directory: str = "data_prep.sources.download:raw_directory"
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
    """Return the kind of a dataset by the name of its encoding; rows for a name that no other kind has."""
    return next((kind for kind in dataset_kinds() if kind is not ROWS and kind.name == encoding), ROWS)


def kind_of_schema(schema: Any) -> DatasetKind:
    """Return the kind of dataset that a YAML schema's content describes: by its keys, else rows."""
    keys = set(schema) if isinstance(schema, dict) else set()
    return next((kind for kind in dataset_kinds() if kind.described_by & keys), ROWS)


def split_directories() -> list[str]:
    """Return the names of all split directories, over all kinds of datasets."""
    return ["train", "val", "test", *(split for kind in dataset_kinds() for split in kind.splits)]


SHARED_IDS = "shared_ids"  # key of a manifest's `extra`: what data.max_ind_range merges, by one of these two figures
VALUES_PER_ROW, UNKNOWN_SHARE = "values_per_row", "unknown_share"
NAMED_SHARE, CROWDED = 0.2, 1.25  # reported: a larger share of unknown values, more values a row of a table


class DataCheck(NamedTuple):
    """A check of the rows of a dataset from raw files. Its functions import their modules when called.

    Attributes:
        name: key of its figures in a manifest's `extra`.
        figures: computes the figures; takes a job, its finished shards, the sparse features and the memory in bytes.
        sentences: returns warnings for the figures. Raises ValueError, which names the key, for damaged figures.
    """

    name: str
    figures: Callable[[Job, Sequence[BuiltShard], Sequence[str], int], Json]
    sentences: Callable[[object], list[str]]


def data_checks() -> list[DataCheck]:
    """Return the checks that all extensions add; they run as a dataset is made, and warn by its manifest."""
    return rows_of_extensions(DataCheck)


def misleading_sentences(extra: Json) -> list[str]:
    """Return the warnings for a manifest's `extra`. A check without figures there gives none."""
    check_sentences = [check.sentences(extra[check.name]) for check in data_checks() if check.name in extra]
    # Sentences on columns in which many values share an id because of the tables' sizes.
    from common.documents import convert

    shared = convert(extra.get(SHARED_IDS, {}), dict[str, dict[str, float]], f"extra.{SHARED_IDS}")
    crowded = [f"{name} ({mean:.1f})" for name, mean in shared.get(VALUES_PER_ROW, {}).items() if mean > CROWDED]
    unknown = [f"{name} ({share:.0%})" for name, share in shared.get(UNKNOWN_SHARE, {}).items() if share > NAMED_SHARE]
    sentences = {
        "values share the rows of their table, on average": crowded,
        "of train's values these shares have the id of unknown values:": unknown,
    }
    return [
        *[f"{words} {', '.join(names)}; raise data.max_ind_range" for words, names in sentences.items() if names],
        *chain.from_iterable(check_sentences),
    ]
