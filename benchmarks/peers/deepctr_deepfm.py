"""DeepCTR-Torch: it has no DLRM; its DeepFM, with the same tables and a deep part of over_arch's widths, by `fit`."""

import contextlib
import io
from typing import Any

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM
from numpy.typing import NDArray

from benchmarks.peers.curve import Point, Task, measure
from benchmarks.peers.rows import DIM, EPS, NUM_DENSE, OVER_ARCH, Rows, load_tables


def run(task: Task) -> list[Point]:
    """Train and evaluate."""
    torch.set_num_threads(task.threads)
    tables = load_tables(task.work)
    columns = [SparseFeat(f"cat_{i}", count, embedding_dim=DIM) for i, count in enumerate(tables)]
    columns += [DenseFeat(f"int_{i}", 1) for i in range(NUM_DENSE)]
    model = DeepFM(
        columns, columns, dnn_hidden_units=OVER_ARCH[:-1], l2_reg_linear=0, l2_reg_embedding=0, seed=task.seed
    )
    model.compile(torch.optim.Adagrad(model.parameters(), lr=task.rate, eps=EPS), "binary_crossentropy")

    def train(rows: Rows) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            model.fit(_inputs(rows), rows.labels, batch_size=task.batch, epochs=1, verbose=0)

    def predict(rows: Rows) -> NDArray[np.float32]:
        return np.asarray(model.predict(_inputs(rows), 4096))

    return measure(task, task.parts(), train, predict)


def _inputs(rows: Rows) -> dict[str, Any]:
    sparse = {f"cat_{i}": column for i, column in enumerate(rows.sparse.T)}
    return sparse | {f"int_{i}": column for i, column in enumerate(rows.dense.T)}
