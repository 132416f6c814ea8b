"""Scores of a split that a run keeps, so that two models can be compared on the same rows.

<run>/scores/SPLIT.logits.npy is [rows] float32 and SPLIT.labels.npy [rows] bool, both in the order of the split's rows.
SPLIT.json is written last and has the checksums of both.
"""

import hashlib
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.metrics.documents import rest
from common.documents import Json, OpenDocument, encode, read_document
from common.errors import UserError
from common.files import write_atomically

SCORES = "scores"
TEST = "test"  # the split that is compared if there are several


class ScoresFile(OpenDocument, kw_only=True):
    """SPLIT.json. step: the checkpoint's that scored; dataset: digest of its manifest; SHA-256 of both arrays."""

    split: str
    rows: int
    step: int
    dataset: str
    logits_sha256: str
    labels_sha256: str
    rest: Json = rest()


class Scores(NamedTuple):
    """Scores of a split: logits [rows] float32, labels [rows] bool, and the file about them."""

    about: ScoresFile
    logits: NDArray[np.float32]
    labels: NDArray[np.bool_]


def write_scores(
    directory: Path, split: str, step: int, dataset: str, logits: NDArray[np.float32], labels: NDArray[np.float32]
) -> Path:
    """Write a run's scores of a split, [rows] in the order of its rows; return the path of the file about them."""
    folder = directory / SCORES
    sums = {}
    for name, values in (("logits", logits.astype(np.float32)), ("labels", labels > 0.5)):
        buffer = io.BytesIO()
        np.save(buffer, values)
        write_atomically(folder / f"{split}.{name}.npy", buffer.getvalue())
        sums[name] = hashlib.sha256(buffer.getvalue()).hexdigest()
    about = ScoresFile(
        split=split,
        rows=len(labels),
        step=step,
        dataset=dataset,
        logits_sha256=sums["logits"],
        labels_sha256=sums["labels"],
    )
    write_atomically(folder / f"{split}.json", (encode(about, indent=1) + "\n").encode())
    return folder / f"{split}.json"


def kept_splits(directory: Path) -> list[str]:
    """Return the splits for which a run has scores, the test split first."""
    return sorted((path.stem for path in (directory / SCORES).glob("*.json")), key=lambda name: (name != TEST, name))


def read_scores(directory: Path, split: str) -> Scores:
    """Return a run's scores of a split.

    Raises:
        FileNotFoundError: there are none.
        UserError: the scores are damaged.
    """
    path = directory / SCORES / f"{split}.json"
    about = read_document(path, ScoresFile, f"remove it, and keep the scores of {split} again")
    remedy = f"write them again by python -m app.evaluate run={directory} split={split} keep_scores={about.rows}"
    arrays = []
    for name, checksum in (("logits", about.logits_sha256), ("labels", about.labels_sha256)):
        array = path.with_name(f"{split}.{name}.npy")
        content = array.read_bytes() if array.is_file() else b""
        if hashlib.sha256(content).hexdigest() != checksum:
            raise UserError(f"{array}: damaged (not the one that {path.name} names); {remedy}")
        arrays.append(np.load(io.BytesIO(content), allow_pickle=False))
    return Scores(about, *arrays)
