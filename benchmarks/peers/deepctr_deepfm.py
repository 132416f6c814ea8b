"""DeepCTR-Torch: it has no DLRM; its DeepFM, with the same tables and a deep part of over_arch's widths, by `fit`."""

import contextlib
import io
import time
from typing import Any

import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM

from benchmarks.peers.rows import DIM, LEARNING_RATE, NUM_DENSE, OVER_ARCH, Rows


def seconds_of_epoch(rows: Rows, batch_size: int, threads: int) -> float:
    """Seconds to train on all rows once."""
    torch.set_num_threads(threads)
    columns = [SparseFeat(f"cat_{i}", count, embedding_dim=DIM) for i, count in enumerate(rows.tables)]
    columns += [DenseFeat(f"int_{i}", 1) for i in range(NUM_DENSE)]
    model = DeepFM(columns, columns, dnn_hidden_units=OVER_ARCH[:-1], l2_reg_linear=0, l2_reg_embedding=0)
    model.compile(torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), "binary_crossentropy")
    inputs: dict[str, Any] = {f"cat_{i}": rows.sparse[:, i] for i in range(len(rows.tables))}
    inputs |= {f"int_{i}": rows.dense[:, i] for i in range(NUM_DENSE)}
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        model.fit(inputs, rows.labels, batch_size=batch_size, epochs=1, verbose=0)
        return time.perf_counter() - began
