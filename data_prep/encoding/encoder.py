"""Encoding of parsed rows for a model: dense float32 and ids int32, for a dataset's rows and for new ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest
from data_prep.dataset.bags import Bags, offsets_of
from data_prep.dataset.format import Manifest, load_rows_manifest, verify_file
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, MultiHot, MultiHotTables
from data_prep.dataset.options import DenseTransform
from data_prep.dataset.schema import Schema
from data_prep.dataset.spelling import LIST_SEPARATOR, Form, from_text
from data_prep.dataset.table_spec import Table
from data_prep.encoding.dense import DenseRange, column_transforms, dense_limits, transform_rows
from data_prep.encoding.ids import torchrec_ids
from data_prep.encoding.lookup import NO_ID, ValueTable, load_tables, vocabulary_path
from data_prep.encoding.new_rows import Shape
from data_prep.encoding.values import remainders, text_values
from data_prep.parsing.convert import convert, distinct, plain, to_texts
from data_prep.parsing.criteo import Block, parse_bytes
from data_prep.parsing.formats import FileLayout, LineFormat, format_named, table_layout
from data_prep.parsing.labels import convert_rows
from data_prep.parsing.raw_rows import Locator, RawRows, numbered_rows
from data_prep.parsing.table_block import TableBlock
from data_prep.parsing.text import Text, read_names

ParsedRows: TypeAlias = Block | TableBlock  # rows of Criteo's format, or of a user's own table


class EncodedBlock(NamedTuple):
    """labels [rows] int32, dense [rows, N] float32, sparse [rows, F] int32 ids, out_of_vocabulary [F] int64.

    out_of_vocabulary counts each feature's values without an id of their own (always 0 with `hash`). If features are
    multi-hot, `sparse` has only the columns of the other features, and `bags` has one entry per multi-hot feature.
    weights: sample weights [rows] float32 of labelled rows, if the dataset has them.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    out_of_vocabulary: NDArray[np.int64]
    bags: tuple[Bags, ...] = ()
    weights: NDArray[np.float32] | None = None


class Encoder:
    """Parser and encoder for new rows, with a dataset's own settings and vocabularies.

    `schema` has the columns of raw rows, `features` the sparse features of encoded ones. The encoding torchrec shifts
    integers by their file's minimum; new rows use the last file's.
    """

    def __init__(self, manifest: Manifest, tables: list[ValueTable], bags: MultiHotTables | None = None) -> None:
        """`bags`: tables that expand ids in the dataset; None if it has none."""
        self.schema = Schema.from_manifest(manifest.encoding["raw_schema"])
        self.features: tuple[str, ...] = tuple(manifest.schema["sparse"])
        self._bags = bags
        self._max_ind_range: int | None = manifest.encoding["max_ind_range"]
        self._wraps: bool = manifest.encoding["wraps"]
        self._tables = dict(zip(self.features, tables, strict=False))
        entry = manifest.encoding.get("table")
        self._table = None if entry is None else Table.from_manifest(entry)
        self._forms = {name: from_text(text) for name, text in manifest.encoding.get("spellings", {}).items()}
        self._transform = DenseTransform(manifest.encoding["dense_transform"])
        self._of_columns = column_transforms(self._table, manifest.encoding.get("dense_fits", {}))
        self._wraps_integers: bool = manifest.encoding["rounds_ids"]  # integers in the shards do so, too
        self._range = None
        if manifest.encoding["dense_range"]:
            last = manifest.encoding["dense_range"][-1]
            self._range = DenseRange(np.array(last["low"]), np.array(last["high"]))

    @classmethod
    def load(cls, root: Path) -> "Encoder":
        """Load the encoder of the dataset at `root`.

        Raises:
            UserError: no dataset, an imported or generated one, or a missing or changed vocabulary.
        """
        manifest = load_rows_manifest(root)
        encoding = manifest.encoding
        if encoding.get("raw_schema") is None:
            raise UserError(f"{root}: imported or generated, not made from raw rows; new rows cannot be encoded for it")
        bags = None
        if "multi_hot" in encoding:
            multi_hot = MultiHot.from_plain(encoding["multi_hot"])
            bags = MultiHotTables.open(root / TABLES_DIRECTORY, list(manifest.num_embeddings.values()), multi_hot)
        if encoding["order"] is None:
            return cls(manifest, [], bags)
        features = tuple(manifest.schema["sparse"])
        for feature in features:
            entry = encoding["vocabulary"][feature]
            verify_file(vocabulary_path(root, feature), FileDigest(entry["bytes"], entry["sha256"]))
        return cls(manifest, load_tables(root, features, encoding["first_id"], encoding["unknown_id"]), bags)

    def parse(self, data: bytes, name: str, labelled: bool = True) -> ParsedRows:
        """Parse rows of a raw file in memory; a user's table includes its header, if it has one.

        Args:
            data: whole rows.
            name: name of the rows in errors.
            labelled: False for rows without the label column, which get label 0.
        """
        if self._table is None:
            return parse_bytes(data, name, self.schema, labelled, missing=np.int32(0))
        if not data:
            raise UserError(f"{name}: empty file; give at least one row")
        form = format_named(self._table.format)
        form = form if isinstance(form, LineFormat) else Text()
        layout, table = self.layout, self._table
        columns = list(dict.fromkeys((*table.targets, *table.inputs) if labelled else table.inputs))
        if isinstance(form, Text):
            fields = read_names(data.partition(b"\n")[0] + b"\n", layout.delimiter, name, layout.dialect)
            layout = layout._replace(names=fields if layout.header else self._names_of(len(fields), labelled))
            for column in columns if layout.header else ():
                if column not in fields:
                    raise UserError(f"{name}: row 1: no column {column}; the first row must name the columns")
        by_column, numbers = form.fields(data, columns, layout, name, 1)
        return self._convert(RawRows(by_column, len(numbers), numbered_rows(name, numbers)), labelled)

    def _names_of(self, width: int, labelled: bool) -> tuple[str, ...]:
        """Return names for rows without a header: all columns, or all but the label."""
        assert self._table is not None
        names = self._table.names
        if not labelled and width == len(names) - 1:
            return tuple(column for column in names if column != self._table.label)
        return names

    @property
    def layout(self) -> FileLayout:
        """Return the columns of a raw file in order, and the delimiter of its text."""
        if self._table is None:
            return FileLayout(self.schema.columns, "\t", header=False)
        return table_layout(self._table)[1]

    def shape(self, required_columns: Collection[str] | None = None) -> Shape:
        """Return the shape of files with new rows. Only the `required_columns` are read; None: all."""
        layout = self.layout
        return Shape(layout.names, layout.delimiter, self.schema.label, required_columns, layout.dialect)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Return the columns that new rows must have: those that features are read from."""
        return (*self.schema.dense, *self.schema.sparse) if self._table is None else self._table.inputs

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Return the further columns that labelled rows must have: the label, and the weight if there is one."""
        return (self.schema.label,) if self._table is None else self._table.targets

    def parse_columns(
        self, columns: Mapping[str, Any], name: str, numbers: Sequence[int] | None = None, labelled: bool = False
    ) -> ParsedRows:
        """Parse rows given by column, as text in a raw file's form or as typed values.

        Args:
            columns: all `input_columns` and, if labelled, `target_columns`, each an Arrow array or a list of Python
                values, of equal lengths.
            name: name of the rows in errors; numbers: the rows' numbers, by default from 1.
            labelled: whether to read labels; otherwise they are 0.
        """
        rows = len(next(iter(columns.values())))
        numbers = range(1, rows + 1) if numbers is None else numbers
        batch = RawRows(columns, rows, numbered_rows(name, numbers))
        if self._table is not None:
            return self._convert(batch, labelled)
        names = (self.schema.label, *self.input_columns) if labelled else self.input_columns
        texts = [to_texts(columns[column], batch.locator_of(column)) for column in names]
        for column, values in zip(names, texts, strict=True):
            for number, text in zip(numbers, values, strict=True):
                if any(character in text for character in "\t\r\n"):
                    raise UserError(f"{name}: row {number}, column {column}: a tab or a line break in it; remove it")
        lines = "".join("\t".join(fields) + "\n" for fields in zip(*texts, strict=True))
        return parse_bytes(lines.encode(), name, self.schema, labelled, numbers[0], np.int32(0))

    def _convert(self, batch: RawRows, labelled: bool) -> TableBlock:
        """Convert columns of a user's table."""
        assert self._table is not None
        return convert_rows(batch, self._table, labelled, dense_limits(self._transform, self._table), self._forms)

    def unknown(self, block: ParsedRows) -> NDArray[np.bool_]:
        """Return a mask [rows, F] of fields with a value without an id of its own; all False with `hash`."""
        unknown = np.zeros((len(block.labels), len(self.features)), np.bool_)
        for index, feature in enumerate(self.features if self._tables else ()):
            ids, _ = self._ids(block, feature, unknown_id=-1)
            counts = offsets_of((ids.ids < 0).astype(np.int64))[ids.offsets]
            unknown[:, index] = np.diff(counts) > 0
        return unknown

    def _ids(self, block: ParsedRows, feature: str, unknown_id: int | None = None) -> tuple[Bags, int]:
        """Return a feature's ids as bags (of one id each if it is not multi-hot), and the number of unknown values."""
        offsets = np.arange(len(block.labels) + 1)
        if isinstance(block, Block):
            values: NDArray[Any] = np.ascontiguousarray(block.sparse[:, self.schema.single.index(feature)])
            codes = None
        else:
            column = block.categories[self.schema.sparse.index(feature)]
            offsets = offsets if column.offsets is None else column.offsets
            values, codes = text_values(column.values.dictionary), column.values.indices.to_numpy()
        ids, missing = self._look_up(feature, values, unknown_id)
        if codes is not None:
            ids, missing = ids[codes], missing[codes]
        return Bags(ids, offsets), int(np.count_nonzero(missing))

    def _look_up(
        self, feature: str, values: NDArray[Any], unknown_id: int | None
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the ids of a feature's values, and a mask of those without an id, which get `unknown_id`."""
        if not self._tables:
            assert self._max_ind_range is not None
            return remainders(values, self._max_ind_range), np.zeros(len(values), np.bool_)
        ids = np.empty(len(values), np.int32)
        replace(self._tables[feature], unknown_id=NO_ID).look_up(values, ids)
        missing = ids == NO_ID
        ids[missing] = self._tables[feature].unknown_id if unknown_id is None else unknown_id
        return ids, missing

    def ids_of(self, feature: str, values: Any) -> NDArray[np.int32]:
        """Return the ids [n] of single values of a sparse feature, -1 for a value without an id.

        Args:
            values: an Arrow array or a list of Python values, as raw rows have them: of a feature that is a part of a
                date, the date; of a multi-hot one, one of a list's values.
        """
        name = f"values of {feature}"
        if self._table is None:
            columns: dict[str, list[Any]] = {column: [""] * len(values) for column in self.input_columns}
            block = self.parse_columns({**columns, feature: values}, name)
            assert isinstance(block, Block)
            ids, _ = self._look_up(feature, np.ascontiguousarray(block.sparse[:, self.features.index(feature)]), NO_ID)
        else:
            texts = self._texts_of(feature, values, name)
            ids, _ = self._look_up(feature, text_values(texts.dictionary), NO_ID)
            ids = ids[texts.indices.to_numpy()]
        known = ids[ids >= 0]
        torchrec_ids(known, rounds=False, modulus=self._max_ind_range if self._wraps and self._tables else None)
        ids[ids >= 0] = known
        return ids

    def _texts_of(self, feature: str, values: Any, name: str) -> Any:
        """Return single values of a feature of a user's table as texts, an Arrow dictionary array; see `ids_of`."""
        assert self._table is not None
        parts = tuple(part for part in self._table.parts if part.feature == feature)
        column = parts[0].column if parts else feature
        batch = RawRows({column: values}, len(values), numbered_rows(name, range(1, len(values) + 1)))
        if (separator := dict(self._table.separators).get(feature)) is not None:
            self._refuse_joined(plain(values), separator, self._forms[feature], batch.locator_of(column))
        table = structs.replace(self._table, dense=(), vectors=(), sparse=(feature,), separators=(), parts=parts)
        try:
            [texts] = convert(batch, table, forms=self._forms).categories
        except UserError as error:
            if not parts:
                raise
            remedy = f"ids of {feature} take times of {column}; dataset.values({feature!r}) lists the {parts[0].part}s"
            raise UserError(f"{error}; {remedy}") from None
        return texts.values

    @staticmethod
    def _refuse_joined(values: Any, separator: str, form: Form, locator: Locator) -> None:
        """Raise UserError for the first text that joins several values of a multi-hot feature."""
        if not separator and form & Form.UNJOINABLE:
            return
        separator, column = separator or LIST_SEPARATOR, distinct(values)
        is_joined = [isinstance(value, str) and separator in value for value in column.values]
        column.refuse(is_joined, locator, f"holds {separator!r}, which joins values", "give each value by itself")

    def encode(self, block: ParsedRows) -> EncodedBlock:
        """Encode parsed rows as the dataset's are."""
        integers = block.dense
        if self._transform is DenseTransform.torchrec and self._range is not None:
            integers = np.maximum(integers, self._range.low.min())  # the logarithm of smaller ones is undefined
        dense = transform_rows(integers, self._transform, self._of_columns, self._range, self._wraps_integers)
        dense = dense.astype(np.float32, copy=False)  # the dtype that shard readers give, too
        unknown = np.zeros(len(self.features), np.int64)
        single: list[NDArray[np.int32]] = []
        bags: list[Bags] = []
        for index, feature in enumerate(self.features):
            encoded, unknown[index] = self._ids(block, feature)
            if feature in self.schema.ragged:
                bags.append(encoded)
            else:
                single.append(encoded.values)
        ids = np.stack(single, axis=1) if single else np.zeros((len(block.labels), 0), np.int32)
        torchrec_ids(ids, rounds=False, modulus=self._max_ind_range if self._wraps and self._tables else None)
        if self._bags is not None:
            ids, bags = self._bags.expand_rows(ids)
        weights = block.weights if isinstance(block, TableBlock) else None
        return EncodedBlock(block.labels, dense, ids, unknown, tuple(bags), weights)
