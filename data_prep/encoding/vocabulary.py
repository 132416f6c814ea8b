"""Values of ids: the way back through a vocabulary."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.encoding.lookup import vocabulary_path
from data_prep.encoding.texts import VocabularyTexts
from data_prep.encoding.values import HASHED
from data_prep.io.arrays import open_array


def vocabulary_values(root: Path, manifest: Manifest, feature: str, ids: Sequence[int]) -> list[str | None]:
    """Return the values of ids as text; None for an id that no value has.

    Criteo's values are eight hexadecimal digits. A user's own whole numbers are their text; other texts need the file
    that data.keep_texts leaves.

    Raises:
        UserError: several values share an id, or a text is not kept.
    """
    encoding = manifest.encoding
    if encoding.get("raw_schema") is None or encoding.get("order") is None or encoding["wraps"]:
        raise UserError(f"{root}: an id of {feature} has no value of its own; prepare it with data.encoding=vocabulary")
    first = encoding["first_id"]
    if encoding["vocabulary"][feature].get("texts"):
        texts = VocabularyTexts(root, feature, first)
        return [texts[number] if 0 <= number - first < len(texts) else None for number in ids]
    values = open_array(vocabulary_path(root, feature))
    integers = [int(values[number - first]) if 0 <= number - first < len(values) else None for number in ids]
    if values.dtype == np.uint32:
        return [None if value is None else f"{value:08x}" for value in integers]
    if any(value is not None and value >= int(HASHED) for value in integers):
        raise UserError(f"{root}: the texts of {feature} are not kept; prepare it again with data.keep_texts=true")
    return [None if value is None else str(value) for value in integers]
