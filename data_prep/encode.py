"""Parsed rows to what the model reads: dense float32, ids int32; of a dataset and of new rows alike."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.format import Manifest, digest_file, load_manifest
from data_prep.jit import jit
from data_prep.parse import Block
from data_prep.schema import Schema

VOCABULARY_DIRECTORY = "vocab"
OUT_OF_VOCABULARY = 0
LOG1P_TABLE_SIZE = 1 << 16
HASH_MULTIPLIER = np.uint32(2654435769)  # 2^32 / golden ratio: Knuth's multiplicative hashing
EMPTY_SLOT = np.uint64(0)


class EncodedBlock(NamedTuple):
    """labels [rows] int32, dense [rows, N] float32, sparse [rows, F] int32 ids, out_of_vocabulary [F] int64.

    The last says how many of each feature's values have no id of their own (always 0 for `hash`).
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    out_of_vocabulary: NDArray[np.int64]


@dataclass(frozen=True)
class LookupTable:
    """value -> id by open addressing: a slot is value << 32 | id, 0 if empty; at most half are taken."""

    slots: NDArray[np.uint64]
    shift: int

    @classmethod
    def build(cls, values: NDArray[np.uint32]) -> "LookupTable":
        """Give values[i] the id i + 1."""
        bits = max(4, math.ceil(math.log2(2 * len(values) + 1)))
        table = cls(np.zeros(1 << bits, np.uint64), 32 - bits)
        _insert(table.slots, np.uint32(table.shift), np.ascontiguousarray(values))
        return table

    @staticmethod
    def bytes_for(num_values: int) -> int:
        """Memory of a table of that many values."""
        return 8 << max(4, math.ceil(math.log2(2 * num_values + 1)))


@jit
def _insert(slots, shift, values):  # type: ignore[no-untyped-def]
    mask = np.uint32(len(slots) - 1)
    for i in range(len(values)):
        slot = np.uint32(values[i] * HASH_MULTIPLIER) >> shift
        while slots[slot] != EMPTY_SLOT:
            slot = (slot + np.uint32(1)) & mask
        slots[slot] = (np.uint64(values[i]) << np.uint64(32)) | np.uint64(i + 1)


@jit
def lookup_column(slots, shift, values, ids):  # type: ignore[no-untyped-def]
    """ids[i] = id of values[i], 0 where it has none; returns how many have none."""
    mask = np.uint32(len(slots) - 1)
    unknown = 0
    for i in range(len(values)):
        value = values[i]
        slot = np.uint32(value * HASH_MULTIPLIER) >> shift
        while True:
            entry = slots[slot]
            if entry == EMPTY_SLOT:
                ids[i] = OUT_OF_VOCABULARY
                unknown += 1
                break
            if np.uint32(entry >> np.uint64(32)) == value:
                ids[i] = np.int32(entry & np.uint64(0xFFFFFFFF))
                break
            slot = (slot + np.uint32(1)) & mask
    return unknown


@jit
def hash_block(sparse, modulus, ids):  # type: ignore[no-untyped-def]
    """ids[r, f] = sparse[r, f] modulo `modulus`."""
    for row in range(sparse.shape[0]):
        for column in range(sparse.shape[1]):
            ids[row, column] = np.int32(sparse[row, column] % modulus)


@jit
def log1p_block(dense, table, result):  # type: ignore[no-untyped-def]
    """result = float32(log(1 + max(x, 0))): small x from a table, the others one by one in float64."""
    for row in range(dense.shape[0]):
        for column in range(dense.shape[1]):
            value = max(dense[row, column], np.int32(0))
            if value < LOG1P_TABLE_SIZE:
                result[row, column] = table[value]
            else:
                result[row, column] = np.float32(math.log1p(np.float64(value)))


@cache
def log1p_table() -> NDArray[np.float32]:
    """float32(log(1 + x)) of x = 0, 1, …, LOG1P_TABLE_SIZE - 1."""
    return np.log1p(np.arange(LOG1P_TABLE_SIZE, dtype=np.float64)).astype(np.float32)


def encode_dense(dense: NDArray[np.int32]) -> NDArray[np.float32]:
    """log(1 + max(x, 0)) as float32; a missing integer becomes 0."""
    result = np.empty(dense.shape, np.float32)
    log1p_block(dense, log1p_table(), result)
    return result


def encode_hash(sparse: NDArray[np.uint32], max_ind_range: int) -> NDArray[np.int32]:
    """value modulo max_ind_range as int32."""
    ids = np.empty(sparse.shape, np.int32)
    hash_block(sparse, np.uint32(max_ind_range), ids)
    return ids


def encode_columns(columns: NDArray[np.uint32], tables: list[LookupTable]) -> tuple[NDArray[np.int32], Any]:
    """Ids of the values of a block.

    Args:
        columns: [F, rows] values.
        tables: one per feature.

    Returns:
        [rows, F] int32 ids and [F] int64 counts of values without an id of their own.
    """
    ids = np.empty(columns.shape, np.int32)
    unknown = np.zeros(len(tables), np.int64)
    for i, table in enumerate(tables):
        unknown[i] = lookup_column(table.slots, np.uint32(table.shift), columns[i], ids[i])
    return np.ascontiguousarray(ids.T), unknown


def vocabulary_path(root: Path, feature: str) -> Path:
    """Where the vocabulary of a feature lies: uint32 values, values[i] having the id i + 1."""
    return root / VOCABULARY_DIRECTORY / f"{feature}.npy"


def load_tables(root: Path, features: tuple[str, ...]) -> list[LookupTable]:
    """Lookup tables of all features from `root`/vocab."""
    return [LookupTable.build(np.load(vocabulary_path(root, feature))) for feature in features]


class Encoder:
    """Encodes new rows as a dataset was encoded."""

    def __init__(self, manifest: Manifest, tables: list[LookupTable]) -> None:
        self.schema = Schema.from_manifest(manifest.schema)
        self._encoding = manifest.encoding
        self._tables = tables

    @classmethod
    def load(cls, root: Path) -> "Encoder":
        """The encoder of the dataset at `root`.

        Raises:
            UserError: no dataset, a vocabulary missing or changed, or an encoding that new rows cannot have.
        """
        manifest = load_manifest(root)
        name = manifest.encoding["name"]
        if name == "hash":
            return cls(manifest, [])
        if name != "vocabulary":
            raise UserError(f"{root}: new rows cannot be encoded as {name!r}; use vocabulary or hash")
        features = Schema.from_manifest(manifest.schema).sparse
        for feature in features:
            path = vocabulary_path(root, feature)
            expected = manifest.encoding["vocabulary"][feature]["sha256"]
            if not path.is_file() or digest_file(path).sha256 != expected:
                raise UserError(f"{path}: missing or changed; preprocess again")
        return cls(manifest, load_tables(root, features))

    def encode(self, block: Block) -> EncodedBlock:
        """Encode parsed rows (of `data_prep.parse.parse_bytes`)."""
        dense = encode_dense(block.dense)
        if self._encoding["name"] == "hash":
            ids = encode_hash(block.sparse, self._encoding["max_ind_range"])
            unknown = np.zeros(ids.shape[1], np.int64)
        else:
            ids, unknown = encode_columns(np.ascontiguousarray(block.sparse.T), self._tables)
        return EncodedBlock(block.labels, dense, ids, unknown)
