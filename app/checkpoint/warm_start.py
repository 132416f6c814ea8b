"""Parameters of a new run from another run's checkpoint: rows of tables by value, dense parameters by name.

Where both runs read the same dataset, or hash values by the same modulus, a row has the same id in both. Otherwise ids
are translated by the vocabularies of both datasets: a row is taken where its value has one in the other run, and keeps
its initial values where the value is new. Row 0, of values without an id, is taken too.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from app.checkpoint.saver import SafeReader, local_tensors, read_tensors, set_tensors, tensors_of, whole_tensors
from app.model.embeddings import Embedding
from common.errors import UserError
from data_prep.dataset.format import Manifest, open_shard
from data_prep.dataset.options import Encoding
from data_prep.lookup import build_table, vocabulary_path

TABLES = ".embedding_bags."  # part of the names of tables' tensors
BLOCK_ROWS = 1 << 18  # rows of a table that are copied at a time
NEW = -1  # in place of the other run's row, for a row without one


class Source(NamedTuple):
    """The other run's checkpoint, and the dataset that it was trained on."""

    checkpoint: Path
    root: Path
    manifest: Manifest


def translate_rows(
    embeddings: Sequence[Embedding], source: Source, root: Path, manifest: Manifest
) -> dict[str, NDArray[np.int64]]:
    """Return, by table, the other run's row of each row [num_embeddings], or NEW.

    A table that is absent has the same rows in both runs: of the same dataset, or hashed into as many rows.
    """
    before, now = source.manifest, manifest
    if before.digest == now.digest:
        return {}
    if not embeddings:
        raise UserError(f"{root}: a log's tables are matched by id alone; start from a run on the same dataset")
    kinds = before.encoding.get("name"), now.encoding.get("name")
    if kinds == (Encoding.hash.value, Encoding.hash.value):
        for name, rows in now.num_embeddings.items():
            if (rows_before := before.num_embeddings.get(name, rows)) != rows:
                raise UserError(
                    f"{root}: hashes column {name} into {rows:,} rows, and {source.root} into {rows_before:,}; prepare "
                    "it with the same data.max_ind_range"
                )
        return {}
    if kinds != (Encoding.vocabulary.value, Encoding.vocabulary.value):
        raise UserError(
            f"{root}: made by data.encoding={kinds[1]}, and {source.root} by {kinds[0]}; rows are matched by value "
            "between two vocabularies, by id between two hashes; else start from a run on the same dataset"
        )
    shared = [table for table in embeddings if len(table.tables) > 1 or len(table.features) > 1]
    if shared:
        raise UserError(
            f"model.tables: {', '.join(shared[0].features)} share a table, or have a quotient-remainder one: rows are "
            "matched by id alone; start from a run on the same dataset"
        )
    return {embedding.tables[0].name: _match_values(embedding, source, root, manifest) for embedding in embeddings}


def _match_values(embedding: Embedding, source: Source, root: Path, manifest: Manifest) -> NDArray[np.int64]:
    """Return the other run's row of each row [rows] of a table, by the value that both have; NEW without one."""
    feature = embedding.features[0]
    rows = np.full(embedding.rows, NEW, np.int64)
    if feature not in source.manifest.num_embeddings:
        return rows
    first_before, first = source.manifest.encoding["first_id"], manifest.encoding["first_id"]
    # Ids below the first one are those of values without an id, in both.
    rows[: min(first, first_before)] = np.arange(min(first, first_before))
    try:
        before, values = (np.load(vocabulary_path(path, feature), allow_pickle=False) for path in (source.root, root))
    except OSError as error:
        raise UserError(
            f"{error.filename}: missing; rows are matched by its values, so make that dataset again"
        ) from error
    if before.dtype != values.dtype:
        raise UserError(f"{root}: column {feature} has values of another kind than in {source.root}; prepare it alike")
    ids = np.empty(len(values), np.int32)
    build_table(before, first_before, NEW).look_up(values, ids)
    rows[first : first + len(values)] = ids
    return rows


def describe_rows(
    embeddings: Sequence[Embedding],
    rows: Mapping[str, NDArray[np.int64]],
    source: Source,
    root: Path,
    manifest: Manifest,
) -> Iterator[str]:
    """Yield a line for each translated table: rows taken, new and dropped; share of train's ids with a taken row."""
    if not rows:
        yield "warm start: rows are those of the same ids, since both datasets give a value the same one"
        return
    single = [name for name in manifest.schema["sparse"] if name not in manifest.ragged]
    shards = [open_shard(root, "train", shard, manifest) for shard in manifest.splits["train"].shards]
    for embedding in embeddings:
        feature = embedding.features[0]
        taken = rows[embedding.tables[0].name] != NEW
        if feature in single:
            columns = [shard.sparse[:, single.index(feature)] for shard in shards]
        else:
            columns = [shard.bags[manifest.ragged.index(feature)].ids for shard in shards]
        cells = sum(len(ids) for ids in columns)
        share = sum(int(np.count_nonzero(taken[ids])) for ids in columns) / max(cells, 1)
        num_taken, num_before = int(taken.sum()), source.manifest.num_embeddings.get(feature, 0)
        counts = f"{num_taken:,} rows taken, {len(taken) - num_taken:,} new, {num_before - num_taken:,} dropped"
        yield f"warm start: {feature}: {counts}; {share:.1%} of train's cells"


def load(
    source: Source,
    model: DistributedModelParallel,
    optimizer: CombinedOptimizer | None,
    rows: Mapping[str, NDArray[np.int64]],
    skipped: Sequence[str],
) -> None:
    """Overwrite tables, dense parameters and, if given, the optimizer's state in place; a collective call.

    rows: as from `translate_rows`. skipped: names of dense parameters, or their beginnings, that keep their initial
    values, as does a table, or a table's state in the optimizer, that the other run lacks.
    """
    reader = SafeReader(source.checkpoint)
    metadata: dict[str, Any] = {**reader.read_metadata().state_dict_metadata}
    tensors = tensors_of(model, optimizer)
    # Tensors that are loaded whole, and by name the other run's row of each row of those that are not.
    equal, translated = dict[str, Any](), dict[str, NDArray[np.int64]]()
    for name, tensor in sorted(whole_tensors(tensors), key=lambda item: TABLES not in item[0]):
        shape = tuple(tensor.size())
        stored = tuple(metadata[name].size) if name in metadata else None
        table = name.partition(TABLES)[2].partition(".weight")[0]
        layer = name.removeprefix("model.").removeprefix("optimizer.state.dense.")
        is_skipped = not table and any(layer == begin or layer.startswith(f"{begin}.") for begin in skipped)
        if (stored is None and table) or is_skipped:
            continue
        if stored is None or stored[1:] != shape[1:] or (stored != shape and table not in rows):
            raise UserError(
                f"checkpoint.warm_start_from={source.checkpoint}: {_describe_misfit(name, table, shape, stored)}"
            )
        if table in rows:
            translated[name] = rows[table]
        else:
            equal[name] = tensor
    read_tensors(source.checkpoint, equal)
    for name, rows_before in translated.items():
        for offsets, values in reader.map_shards(name):
            for path, own_offsets, own in local_tensors(tensors):
                if path == name:
                    _take_rows(own_offsets, own, offsets, values, rows_before)
    set_tensors(model, optimizer, tensors)


def _take_rows(
    own_offsets: tuple[int, ...], own: Tensor, offsets: tuple[int, ...], values: Tensor, rows: NDArray[np.int64]
) -> None:
    """Copy rows to this process's shard from a stored shard of the other run, which begin at their offsets.

    rows: the other run's row of each row of the whole table.
    """
    columns, stored_columns = slice(None), slice(None)
    if values.dim() == 2:  # shards by columns overlap in some
        first = max(own_offsets[1], offsets[1])
        end = min(own_offsets[1] + own.shape[1], offsets[1] + values.shape[1])
        if first >= end:
            return
        columns, stored_columns = (slice(first - start, end - start) for start in (own_offsets[1], offsets[1]))
    for begin in range(0, len(own), BLOCK_ROWS):
        block = own[begin : begin + BLOCK_ROWS]
        # Counted within the stored shard, so that NEW and rows of other shards lie outside it.
        stored_rows = rows[own_offsets[0] + begin :][: len(block)] - offsets[0]
        taken = np.flatnonzero((stored_rows >= 0) & (stored_rows < len(values)))
        read = values[torch.from_numpy(stored_rows[taken])]
        if values.dim() == 2:
            block, read = block[:, columns], read[:, stored_columns]
        block[torch.from_numpy(taken).to(block.device)] = read.to(block.device)


def _describe_misfit(name: str, table: str, shape: tuple[int, ...], stored: tuple[int, ...] | None) -> str:
    """Return why a tensor does not fit, with the remedy; stored: its shape in the other run, None if it has none.

    table: the table of the tensor; empty for a dense layer's.
    """
    layer = name.removeprefix("model.").removeprefix("optimizer.state.dense.").rpartition(".")[0] or name
    difference = "is not there" if stored is None else f"has shape {list(stored)} there, {list(shape)} here"
    if not table:
        return f"{layer} {difference}; give the same layers, or checkpoint.warm_start_skip=[{layer}] to begin it anew"
    if name.startswith("optimizer."):
        return f"the optimizer's state of {table} {difference}; give checkpoint.warm_start_optimizer=false"
    assert stored is not None
    if stored[1:] != shape[1:]:
        return f"{table} has vectors of {stored[1]} values there, {shape[1]} here; give model.embedding_dim={stored[1]}"
    return f"{table} {difference}; give the tables the same settings, or start from a run on this dataset"
