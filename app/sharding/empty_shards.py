"""Shards of no rows: a table with fewer rows than the processes that share it leaves some without."""

from itertools import accumulate

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn


def count_empty_shards(lookup: nn.Module) -> None:
    """Let FBGEMM's CPU kernels find a row, which no id asks for, wherever a lookup has none of a table's.

    They take equal neighbours in `hash_size_cumsum` for one table of several features and train it as wide as the
    empty one; they seek the rows of a last, empty table beyond the end; and they leave tables without any weight to
    the GPU's. (FBGEMM 1.5 to 1.8: embedding_forward_split_cpu.cpp, embedding_backward_split_cpu_template.cpp,
    split_embedding_codegen_lookup_invoker.template.) Neither what is stored and saved nor the check of ids changes.
    GPU kernels look at a table only for an id of it, so theirs stay as they are.
    """
    for tables in lookup.modules():
        if isinstance(tables, SplitTableBatchedEmbeddingBagsCodegen) and tables.use_cpu:
            starts = list(accumulate((max(1, rows) for rows, *_ in tables.embedding_specs), initial=0))
            counted = [*(starts[table] for table in tables.feature_table_map), starts[-1]]
            tables.hash_size_cumsum.copy_(torch.tensor(counted))
            if tables.weights_host.numel() == 0:
                row = tables.weights_host.new_zeros(tables.max_D)
                del tables.weights_host  # empty, it is a buffer
                tables.weights_host = nn.Parameter(row)
