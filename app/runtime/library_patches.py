"""Changes that this program makes inside TorchRec and FBGEMM, each with the fault and the releases that it is for.

The changes reach into internal parts, so releases with which they were not tried are refused.
"""

import re
import sys
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    DenseTableBatchedEmbeddingBagsCodegen,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.nn import functional
from torchrec.distributed import dist_data

from common.errors import UserError

# Oldest and newest release of each; FBGEMM 1.X belongs to torch 2.(X + 5).
TRIED = {"torch": ((2, 10), (2, 14)), "torchrec": ((1, 4), (1, 9))}
FIRST_YEAR = 2000  # AMD's images number their own builds by year and month; they belong to the torch beside them

_permutation_of_received_ids = dist_data._get_recat


def apply() -> None:
    """Apply the changes that concern every model of this process; a second call changes nothing."""
    for name in TRIED:
        require_tried(name, str(sys.modules[name].__version__))
    dist_data._get_recat = _permutation_if_used


def require_tried(name: str, version: str) -> None:
    """Raise UserError if the changes were not tried with this version of torch or TorchRec."""
    oldest, newest = TRIED[name]
    release = re.match(r"(\d+)\.(\d+)", version)
    numbers = (int(release[1]), int(release[2])) if release is not None else (0, 0)
    if numbers[0] < FIRST_YEAR and not oldest <= numbers <= newest:
        first, last = (".".join(map(str, numbers)) for numbers in (oldest, newest))
        raise UserError(
            f"{name} {version}: supported are {first} to {last}, since this program changes internal parts of "
            f"TorchRec; install one of them: pip install --no-deps '{name}=={last}.*', and what belongs to it "
            "(docs/compatibility.md)"
        )


def _permutation_if_used(local_split: int, num_splits: int, *settings: Any, **keywords: Any) -> torch.Tensor | None:
    """Return TorchRec's permutation of received ids; None for a single process, which receives nothing.

    Otherwise TorchRec (1.4 to 1.9, KJTAllToAll; no issue known) makes a permutation that changes nothing, copies it to
    the GPU at each step and waits for it.
    """
    return None if num_splits == 1 else _permutation_of_received_ids(local_split, num_splits, *settings, **keywords)


def count_empty_shards(lookup: nn.Module) -> None:
    """Let FBGEMM's CPU kernels find a row, which no id asks for, in each table of which a lookup has no rows.

    These kernels take equal neighbours in `hash_size_cumsum` for one table of several features, and train that table as
    wide as the empty one. They look for the rows of a last, empty table beyond the end. And they pass tables without
    any weight on to the GPU kernels. (FBGEMM 1.5 to 1.8, no issue known: embedding_forward_split_cpu.cpp,
    embedding_backward_split_cpu_template.cpp, split_embedding_codegen_lookup_invoker.template.) Stored and saved values
    and the check of ids do not change. GPU kernels look at a table only for an id of it, so theirs stay as they are.
    """
    for tables in lookup.modules():
        if isinstance(tables, SplitTableBatchedEmbeddingBagsCodegen) and tables.use_cpu:
            starts = list(accumulate((max(1, rows) for rows, *_ in tables.embedding_specs), initial=0))
            row_offsets = [*(starts[table] for table in tables.feature_table_map), starts[-1]]
            tables.hash_size_cumsum.copy_(torch.tensor(row_offsets))
            if tables.weights_host.numel() == 0:
                row = tables.weights_host.new_zeros(tables.max_D)
                del tables.weights_host  # empty, it is a buffer
                tables.weights_host = nn.Parameter(row)


def replace_narrow_lookups(lookup: nn.Module) -> None:
    """Let torch look up data-parallel tables on a GPU whose width is not a multiple of 4 (FBGEMM_MULTIPLE).

    FBGEMM's kernel for them loads four values at a time, and ends with "misaligned address" (1.6.0 on an H200, widths
    of 1, 2, 3, 6 and 10; no issue known: dense_embedding_codegen_lookup_function). Its CPU kernel reads any width.
    """
    for tables in lookup.modules():
        if not isinstance(tables, DenseTableBatchedEmbeddingBagsCodegen) or tables.use_cpu:
            continue
        if any(width % 4 for _, width in tables.embedding_specs):
            tables.forward = partial(pool_rows, tables)


def pool_rows(
    tables: DenseTableBatchedEmbeddingBagsCodegen, indices: Tensor, offsets: Tensor, per_sample_weights: None = None
) -> Tensor:
    """Return pooled vectors [B, F·D] float32 of F features, as the tables' own forward does, on any device.

    tables: of one width D. indices: ids of all bags, feature by feature, [L] int. offsets: position of each bag's first
    id, then L, [F·B + 1] int. per_sample_weights: not supported.
    """
    assert per_sample_weights is None, "weighted tables are looked up id by id"
    (width,) = {width for _, width in tables.embedding_specs}
    num_features = len(tables.weights_offsets)
    ids_per_feature = offsets[:: (len(offsets) - 1) // num_features].diff()
    first_rows = tables.hash_size_cumsum[:num_features]
    rows = indices + first_rows.repeat_interleave(ids_per_feature, output_size=len(indices))  # a size: no wait
    # The operator takes the beginnings of bags alone, in the type of the ids.
    vectors = functional.embedding_bag(
        rows,
        tables.weights.view(-1, width),
        offsets[:-1].to(rows.dtype),
        mode="mean" if tables.pooling_mode is PoolingMode.MEAN else "sum",
    )
    return vectors.float().view(num_features, -1, width).transpose(0, 1).flatten(1)
