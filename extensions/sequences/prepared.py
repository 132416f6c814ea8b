"""MLPerf's prepared events of DLRMv4 to Parquet, which `python -m data_prep` reads as it reads the published log.

    clickwork import-events prepared.source=DIRECTORY prepared.out=events.parquet [prepared.md5=SUMS]
    python -m data_prep data.raw=events.parquet data.schema=yambda_prepared data.path=data/yambda_5b

The directory is the reference's cache (mlcommons/training, recommendation_v4, `_FlatEventStore.save_mmap`): one NumPy
array a column, all events of train by user and time, and `_READY`, its last file. Order and values stay.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["import-events"])


import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.cli import EXIT_DONE
from common.errors import UserError
from common.files import digest_file
from extensions.sequences.keys import ImportConfig

EVENT_TYPES = pa.array(["listen", "like", "dislike", "unlike", "undislike"])  # by the numbers of flat_event_types
# Column of the published log, its type, and the array that has its values.
COLUMNS = {
    "uid": (pa.uint32(), "flat_uid"),
    "timestamp": (pa.uint32(), "flat_timestamps"),
    "item_id": (pa.uint32(), "flat_item_ids"),
    "is_organic": (pa.uint8(), "flat_is_organic"),
    "played_ratio_pct": (pa.float32(), "flat_played_ratio"),
    "event_type": (pa.dictionary(pa.int32(), pa.string()), "flat_event_types"),
}
READY, META = "_READY", "store_meta.json"
BATCH_ROWS = 1 << 20


def main(config: ImportConfig) -> int:
    """Convert as configured, and return an exit status."""
    source, out = Path(config.prepared.source), Path(config.prepared.out)
    if not (source / READY).exists():
        raise UserError(f"{source}: no {READY}, the last file of MLPerf's prepared events; complete the download")
    if config.prepared.md5 is not None:
        require_sums(source, Path(config.prepared.md5))
    try:
        rows = int(json.loads((source / META).read_bytes())["total_events"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{source / META}: no count of events ({error}); download it again") from error
    files = {name: source / f"{array}.npy" for name, (_, array) in COLUMNS.items()}
    arrays = {name: _map_array(file, rows) for name, file in files.items()}
    part = out.with_name(f".{out.name}.part")
    schema = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
    try:
        with pq.ParquetWriter(part, schema) as writer:
            for start in range(0, rows, BATCH_ROWS):
                columns = []
                for name, array in arrays.items():
                    values = np.ascontiguousarray(array[start : start + BATCH_ROWS])
                    try:
                        if name == "event_type":
                            column = pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), EVENT_TYPES)
                        else:
                            column = pa.array(values, schema.field(name).type)
                    except (pa.ArrowInvalid, IndexError, OverflowError) as error:
                        message = f"{files[name]}: rows from {start:,} on: {error}; download it again"
                        raise UserError(message) from error
                    columns.append(column)
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    print(f"{out}: {rows:,} events; artist_item_mapping.parquet and album_item_mapping.parquet belong beside it")
    return EXIT_DONE


def require_sums(source: Path, sums: Path) -> None:
    """Compare files with their MD5 in a list as md5sum prints it."""
    for number, line in enumerate(sums.read_text(encoding="utf-8").splitlines(), 1):
        expected, _, name = line.partition(" ")
        name = name.strip().removeprefix("*").removeprefix("./")
        if len(expected) != 32 or not name:
            raise UserError(f"{sums}: line {number} is not an MD5 and a name; give what md5sum prints")
        path = source / name
        if not path.is_file():
            raise UserError(f"{path}: missing, and {sums} lists it; complete the download")
        found = digest_file(path, partial(hashlib.md5, usedforsecurity=False)).sha256
        if found != expected.lower():
            raise UserError(f"{path}: MD5 {found}, but {sums} has {expected}; download it again")


def _map_array(path: Path, rows: int) -> NDArray[Any]:
    """Map a NumPy file of one column, which must have as many events as the directory counts."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a NumPy array ({error}); download it again") from error
    if array.shape != (rows,):
        raise UserError(f"{path}: shape {array.shape}, but {META} counts {rows:,} events; download it again")
    return array
