"""Our shards as terabyte_processed_{train,val,test}.bin: per row 40 int32, the label, the integers, the ids."""

from pathlib import Path

import numpy as np

from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.options import DenseTransform
from data_prep.dataset.schema import CRITEO
from data_prep.exchange.export import refuse_bags, require_export_room, split_pieces
from data_prep.io.atomic import temporary_path

EXACT_FLOAT32 = 2**24


def export_bin(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write terabyte_processed_{train,val,test}.bin.

    Raises:
        UserError: the dataset does not hold the integers as they were, or not exactly, or it holds bags.
    """
    refuse_bags(root, manifest)
    columns = len(manifest.schema["dense"]), len(manifest.schema["sparse"])
    if columns != (len(CRITEO.dense), len(CRITEO.sparse)):
        raise UserError(
            f"{root}: has {columns[0]} dense and {columns[1]} sparse columns, but a record of .bin files is of "
            f"Criteo's {len(CRITEO.dense)} and {len(CRITEO.sparse)}; use exchange.format=npy"
        )
    transform = manifest.encoding.get("dense_transform")
    if transform not in (DenseTransform.raw.value, DenseTransform.integers.value):
        raise UserError(
            f"{root}: integers are transformed ({transform or 'how, is not known'}), but .bin files hold them as they "
            "are; preprocess, or import, with data.dense_transform=integers"
        )
    require_export_room(manifest, target, len(manifest.schema["sparse"]))
    files = [target / f"terabyte_processed_{split}.bin" for split in manifest.splits]
    for split, path in zip(manifest.splits, files, strict=True):
        temporary = temporary_path(path)
        try:
            _write_records(root, manifest, split, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return files


def _write_records(root: Path, manifest: Manifest, split: str, path: Path) -> None:
    with open(path, "wb") as file:
        for piece in split_pieces(manifest, split):
            arrays = piece.open(root, manifest)
            dense = arrays.dense
            if dense.dtype != np.int32 and np.abs(dense).max(initial=0) >= EXACT_FLOAT32:  # as 2^24 + 1 has become
                raise UserError(
                    f"{root}: split {split} has an integer of 2^24 or more, which float32 has rounded; preprocess "
                    "with data.dense_transform=integers to export it as bin"
                )
            whole = dense.astype(np.int32)
            if (whole != dense).any():
                raise UserError(f"{root}: split {split} has a number with a fraction, which .bin files cannot hold")
            record = np.concatenate((arrays.labels, whole, arrays.sparse), axis=1)
            file.write(record.astype(np.int32).data)
