"""The encoder in an exported directory: vocabularies and rules as files, and the modules that apply them.

    encoder/rules.json            columns, their kinds, spellings and transforms, and what an id may be
    encoder/FEATURE.arrow         a vocabulary: value (ascending), id and, if texts are exported, text
    encoder/FEATURE.bags.arrow    the bag that each id is expanded to (data.multi_hot)
    encoder/*.py                  copies of the modules that converted the dataset's rows

The copies need NumPy and pyarrow alone, so the same code reads rows for a dataset and for an exported model.
"""

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from app.config import AppConfig
from app.data.shards import bags_directory
from common.documents import Json, encode
from common.files import FileDigest, write_atomically
from data_prep.dataset.dialect import STANDARD
from data_prep.dataset.format import Manifest, verify_file
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, MultiHot, MultiHotTables
from data_prep.dataset.options import DenseTransform
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import Table
from data_prep.encoding.dense import column_transforms, dense_limits
from data_prep.encoding.lookup import vocabulary_path
from data_prep.encoding.texts import VocabularyTexts
from data_prep.io.arrays import open_array

ENCODER = "encoder"
MODULES = (
    "common.errors",
    "data_prep.dataset.bags",
    "data_prep.dataset.dialect",
    "data_prep.dataset.spelling",
    "data_prep.dataset.transforms",
    "data_prep.encoding.values",
    "data_prep.parsing.convert",
    "data_prep.parsing.dates",
    "data_prep.parsing.in_memory",
    "data_prep.parsing.numbers",
    "data_prep.parsing.raw_rows",
    "data_prep.parsing.table_block",
)
_IMPORT = re.compile(r"^( *)from (?:common|data_prep\.\w+)\.(\w+) import ", re.MULTILINE)


def write_encoder(directory: Path, root: Path, manifest: Manifest, config: AppConfig, with_texts: bool) -> None:
    """Write the encoder of the dataset at `root`, as a run of this configuration reads it.

    with_texts: write the texts of values, if the dataset has kept them. Ids do not need them.
    """
    directory.mkdir()
    for name in MODULES:
        source = Path(str(import_module(name).__file__)).read_text(encoding="utf-8")
        (directory / f"{name.rpartition('.')[2]}.py").write_text(
            _IMPORT.sub(r"\1from .\2 import ", source), encoding="utf-8"
        )
    encoding, features = manifest.encoding, list(manifest.num_embeddings)
    is_raw = encoding.get("raw_schema") is not None
    expanded = _expansion(root, manifest, config)
    sizes = [1] * len(features) if expanded is None else expanded.sizes
    bagged = {name for name, size in zip(features, sizes, strict=True) if size > 1}
    for number, name in enumerate(features):
        if expanded is not None and name in bagged:
            _write_bags(directory / f"{name}.bags.arrow", np.asarray(expanded.tables[number]))
        if is_raw and encoding["order"] is not None:
            _write_vocabulary(directory / f"{name}.arrow", root, name, manifest, with_texts)
    rules = _raw_rules(root, manifest) if is_raw else _id_rules(manifest)
    rules |= {
        "dense": manifest.schema["dense"],
        "sparse": features,
        "num_embeddings": manifest.num_embeddings,
        "bags": [name for name in features if name in bagged or name in manifest.ragged],
        "expanded": [name for name in features if name in bagged],
        "vocabularies": features if is_raw and encoding["order"] is not None else [],
    }
    write_atomically(directory / "rules.json", encode(rules, indent=1).encode())


def _raw_rules(root: Path, manifest: Manifest) -> Json:
    """Return the rules that make features of raw rows."""
    encoding, schema = manifest.encoding, Schema.from_manifest(manifest.encoding["raw_schema"])
    entry = encoding.get("table")
    table = None if entry is None else Table.from_manifest(entry)
    used = [*schema.dense, *manifest.num_embeddings]
    transform, ranges = DenseTransform(encoding["dense_transform"]), encoding["dense_range"]
    return {
        "kind": "criteo" if table is None else "table",
        "label": schema.label,
        "columns": list(dict.fromkeys(used if table is None else map(table.columns_of_features.__getitem__, used))),
        "names": list(schema.columns if table is None else table.names),
        "delimiter": "\t" if table is None else table.delimiter,
        "dialect": (STANDARD if table is None else table.dialect)._asdict(),
        "table": table and _table_rules(table, list(manifest.num_embeddings), dense_limits(transform, table)),
        "spellings": encoding.get("spellings", {}),
        "dense_transform": transform.value,
        "dense_range": ranges[-1] if ranges else None,
        "transforms": [] if table is None else column_transforms(table, encoding.get("dense_fits", {})),
        "wraps_integers": encoding["rounds_ids"],
        "unknown_id": encoding["unknown_id"],
        "max_ind_range": encoding["max_ind_range"],
        "wraps": encoding["wraps"],
    }


def _table_rules(table: Table, features: Sequence[str], limits: Sequence[float]) -> Json:
    """Return what the conversion of features reads of a table.

    features: those that the encoding has kept; limits: of each dense feature.
    """
    kept = [part for part in table.parts if part.feature in (*table.dense, *features)]
    parts = [{name: getattr(part, name) for name in part.__struct_fields__} for part in kept]
    names = ("dense", "transforms", "separators", "decimal", "thousands", "missing")
    vectors = [{name: getattr(vector, name) for name in vector.__struct_fields__} for vector in table.vectors]
    shared = {name: getattr(table, name) for name in names}
    return {"sparse": features, "parts": parts, "vectors": vectors, "limits": limits, **shared}


def _id_rules(manifest: Manifest) -> Json:
    """Return the rules of a dataset without raw rows, generated or imported: its rows hold ids."""
    columns = [*manifest.schema["dense"], *manifest.num_embeddings]
    label = manifest.schema["label"]
    shared: dict[str, Any] = {"table": None, "spellings": {}, "delimiter": ",", "dialect": STANDARD._asdict()}
    return {"kind": "ids", "label": label, "columns": columns, "names": [label, *columns], **shared}


def _expansion(root: Path, manifest: Manifest, config: AppConfig) -> MultiHotTables | None:
    """Return the bags that ids are expanded to, in the dataset or while it is read; None if they are not."""
    rows = list(manifest.num_embeddings.values())
    if (bags := config.data.multi_hot.bags()) is not None:
        return MultiHotTables.open(bags_directory(root, config.data), rows, bags)
    if "multi_hot" in manifest.encoding and manifest.encoding.get("raw_schema") is not None:
        bags = MultiHot.from_plain(manifest.encoding["multi_hot"])
        return MultiHotTables.open(root / TABLES_DIRECTORY, rows, bags)
    return None


def _write_vocabulary(path: Path, root: Path, name: str, manifest: Manifest, with_texts: bool) -> None:
    entry = manifest.encoding["vocabulary"][name]
    source = vocabulary_path(root, name)
    verify_file(source, FileDigest(entry["bytes"], entry["sha256"]))
    values = np.array(open_array(source))
    order = np.argsort(values)
    columns = {"value": values[order], "id": (order + manifest.encoding["first_id"]).astype(np.int32)}
    if with_texts and entry.get("texts"):
        blocks = [block.cast(pa.large_string()) for block in VocabularyTexts(root, name).blocks(1 << 20)]
        columns["text"] = pa.concat_arrays(blocks).take(pa.array(order)) if blocks else pa.array([], pa.large_string())
    _write_arrow(path, pa.table(columns))


def _write_bags(path: Path, bags: Any) -> None:
    """Write the bag of each id, [rows, size] int32."""
    array = pa.FixedSizeListArray.from_arrays(pa.array(bags.reshape(-1)), bags.shape[1])
    _write_arrow(path, pa.table({"bag": array}))


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())
