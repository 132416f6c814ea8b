"""Texts of a vocabulary's values, stored beside it in the order of their ids.

    <root>/vocab/<feature>.texts.npy      [B] uint8           UTF-8 bytes of all texts
    <root>/vocab/<feature>.offsets.npy    [values + 1] int64  where each text begins, and the last one ends

They exist for a user's own table with a vocabulary that was prepared with data.keep_texts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest
from data_prep.dataset.format import REMEDY, Manifest, verify_file
from data_prep.encoding.lookup import vocabulary_path
from data_prep.encoding.values import text_values
from data_prep.io.arrays import open_array

TEXT_KINDS = ("texts", "offsets")
CHECKED_VALUES = 1 << 18


def text_path(root: Path, feature: str, kind: str) -> Path:
    """Return the path of a feature's file of one of TEXT_KINDS."""
    return vocabulary_path(root, feature).with_name(f"{feature}.{kind}.npy")


class VocabularyTexts:
    """Texts of a feature's values, memory-mapped."""

    def __init__(self, root: Path, feature: str, first_id: int = 1) -> None:
        """Open the files of the dataset at `root`; its first value has the id `first_id`."""
        paths = [text_path(root, feature, kind) for kind in TEXT_KINDS]
        try:
            self._content, self._offsets = (open_array(path) for path in paths)
        except (OSError, ValueError) as error:
            raise UserError(f"{paths[0]}: the values' texts are not readable ({error}); {REMEDY}") from error
        are_typed = self._content.dtype == np.uint8 and self._offsets.dtype == np.int64
        if not are_typed or not len(self._offsets) or self._offsets[-1] != len(self._content):
            raise UserError(f"{paths[1]}: does not fit {paths[0].name}; {REMEDY}")
        self._first_id = first_id

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        """Return the text of an id. Raise IndexError for an id that no value has."""
        place = number - self._first_id
        if not 0 <= place < len(self):
            raise IndexError(number)
        return bytes(self._content[self._offsets[place] : self._offsets[place + 1]]).decode()

    def blocks(self, size: int) -> Iterator[Any]:
        """Yield the texts in order of their ids as Arrow arrays of at most `size`."""
        for start in range(0, len(self), size):
            offsets: NDArray[np.int64] = np.array(self._offsets[start : start + size + 1])
            content = np.array(self._content[offsets[0] : offsets[-1]])
            yield texts_of(offsets - offsets[0], content)


def texts_of(offsets: NDArray[np.int64], content: NDArray[np.uint8]) -> Any:
    """Return an Arrow array of texts; text i is content[offsets[i] : offsets[i + 1]]."""
    import pyarrow as pa

    buffers = [pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def text_buffers(texts: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets [n + 1] and bytes of an Arrow array of texts: the arguments of `texts_of`."""
    import pyarrow as pa

    texts = texts.cast(pa.large_string())
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(b"" if data is None else data, np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], content


def verify_texts(root: Path, manifest: Manifest) -> None:
    """Compare the texts with their checksums, and with the values that they belong to."""
    for feature, entry in (manifest.encoding.get("vocabulary") or {}).items():
        for kind, digest in (entry.get("texts") or {}).items():
            verify_file(text_path(root, feature, kind), FileDigest(digest["bytes"], digest["sha256"]))
        if entry.get("texts"):
            values, start = open_array(vocabulary_path(root, feature)), 0
            for texts in VocabularyTexts(root, feature).blocks(CHECKED_VALUES):
                keys = text_values(texts)
                if not np.array_equal(keys, values[start : start + len(keys)]):
                    path = text_path(root, feature, TEXT_KINDS[0])
                    raise UserError(f"{path}: are not the texts of the values in {feature}.npy; {REMEDY}")
                start += len(keys)
