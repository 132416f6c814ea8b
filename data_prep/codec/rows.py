"""New rows to dense features and ids by the rules of a dataset, for the dataset itself and for an exported model.

Rules are a JSON object: `rules_of` of data_prep/encoding.py makes them of a manifest, and an export keeps them in
encoder/rules.json.

    kind                      table: a user's own columns; criteo: integers and hexadecimal categories
    columns                   that rows must have
    dense, sparse             features in their order
    table, spellings          what `convert` reads of a user's table, and the spellings of its sparse columns
    dense_transform           of all dense features, with dense_range and wraps_integers
    transforms                those of single dense features, after it
    vocabularies, unknown_id  features with a vocabulary, and the id of a value that it lacks
    max_ind_range, wraps      modulus of all other values, or with `wraps` of ids as well
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.codec.convert import convert, distinct_texts
from data_prep.codec.values import (
    Bags,
    RawRows,
    from_text,
    remainders,
    text_values,
    transform_columns,
    transform_numbers,
)

HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
INT32 = 1 << 31


class Values(NamedTuple):
    """Values of a sparse feature.

    distinct [n] uint32 or uint64; codes [m]: index of each value in `distinct`; offsets [rows + 1] int64: where each
    row's values begin and the last one's end, None: one value a row.
    """

    distinct: NDArray[Any]
    codes: NDArray[Any]
    offsets: NDArray[np.int64] | None = None


class ParsedRows(NamedTuple):
    """labels [rows] int32, or float32 if they are numbers; dense [rows, N] float64; values: by sparse feature.

    weights: sample weights [rows] float32 of labelled rows, if the dataset has them.
    """

    labels: NDArray[Any]
    dense: NDArray[np.float64]
    values: Mapping[str, Values]
    weights: NDArray[np.float32] | None = None


class RowCodec:
    """Encoder of raw rows as dense features and ids.

    columns: that rows must have; features: the sparse ones.
    """

    def __init__(self, rules: Mapping[str, Any], vocabularies: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """rules: see the module's docstring; vocabularies: values [n] ascending, and the id [n] of each, by feature."""
        self.columns: Sequence[str] = rules["columns"]
        self.features: Sequence[str] = rules["sparse"]
        self._rules, self._vocabularies = rules, vocabularies
        self.forms = {name: from_text(text) for name, text in rules["spellings"].items()}
        self.table: Any = None
        if table := rules["table"]:
            # `convert` reads keys as attributes.
            parts = {name: [SimpleNamespace(**entry) for entry in table[name]] for name in ("parts", "vectors")}
            self.table = SimpleNamespace(**{**table, **parts}, label_kind=SimpleNamespace(dtype=np.float32))

    def parse(self, batch: RawRows) -> ParsedRows:
        """Parse rows without their labels, which become 0. Raises UserError for an invalid value (row, column)."""
        if self.table is not None:
            block = convert(batch, self.table, self.table.limits, self.forms)
            columns = zip(self.table.sparse, block.categories, strict=True)
            values = {
                name: Values(text_values(column.values.dictionary), column.values.indices.to_numpy(), column.offsets)
                for name, column in columns
            }
            return ParsedRows(block.labels, block.dense, values)
        # Criteo's rows: integers of 32 bits and categories of 32 bits in hexadecimal digits, 0 for an empty field.
        dense = np.zeros((batch.rows, len(self._rules["dense"])))
        for place, name in enumerate(self._rules["dense"]):
            column = distinct_texts(batch.columns[name], batch.locator_of(name))
            numbers = [_parse_integer(text) for text in column.values]
            is_bad = [number is None for number in numbers]
            column.refuse(is_bad, batch.locator_of(name), "is not an integer of 32 bits")
            dense[:, place] = np.array(numbers, np.float64)[column.codes]
        values = {}
        for name in self.features:
            column = distinct_texts(batch.columns[name], batch.locator_of(name))
            is_bad = [not set(text) <= HEX_DIGITS or len(text) > 8 for text in column.values]
            column.refuse(is_bad, batch.locator_of(name), "is not a category of at most 8 hexadecimal digits")
            values[name] = Values(np.array([int(text or "0", 16) for text in column.values], np.uint32), column.codes)
        return ParsedRows(np.zeros(batch.rows, np.int32), dense, values)

    def dense(self, rows: ParsedRows) -> NDArray[np.float32]:
        """Return the dense features [rows, N]. New rows below the lowest numbers of train count as these."""
        bounds = self._rules["dense_range"] or {"low": (), "high": ()}
        low, high = np.array(bounds["low"]), np.array(bounds["high"])
        kind, wraps = self._rules["dense_transform"], self._rules["wraps_integers"]
        numbers = np.maximum(rows.dense, low.min()) if kind == "torchrec" else rows.dense
        # A column with a transform of its own may overflow here, and is transformed below.
        with np.errstate(all="ignore"):
            result = np.array(transform_numbers(numbers, kind, low, high, wraps), np.float32)
        transform_columns(rows.dense, self._rules["transforms"], result)
        return result

    def ids(self, feature: str, values: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the ids [n] of a feature's values [n], and a mask of values without an id of their own."""
        modulus = self._rules["max_ind_range"]
        if feature not in self._vocabularies:
            return remainders(values, modulus), np.zeros(len(values), np.bool_)
        known, known_ids = self._vocabularies[feature]
        # Bisection by NumPy suffices for the distinct values of new rows; preparation hashes, by Numba.
        places = np.searchsorted(known, values)
        places[places == len(known)] = 0  # a value beyond the last differs from the first, too
        has_id = known[places] == values if len(known) else np.zeros(len(values), np.bool_)
        ids = np.full(len(values), self._rules["unknown_id"], np.int32)
        ids[has_id] = known_ids[places[has_id]]
        return ids % np.int32(modulus) if self._rules["wraps"] and modulus else ids, ~has_id

    def bags(self, rows: ParsedRows, feature: str) -> tuple[Bags, NDArray[np.bool_]]:
        """Return a feature's ids as bags, of one id each if it is not multi-hot, and a mask of unknown values' ids."""
        distinct, codes, offsets = rows.values[feature]
        ids, missing = self.ids(feature, distinct)
        return Bags(ids[codes], np.arange(len(rows.labels) + 1) if offsets is None else offsets), missing[codes]


def _parse_integer(text: str) -> int | None:
    """Return a field of Criteo as an integer of 32 bits, 0 for an empty one; None if it is none."""
    digits = text.removeprefix("-")
    if not text:
        return 0
    if not (digits.isascii() and digits.isdecimal()):
        return None
    return int(text) if -INT32 <= int(text) < INT32 else None
