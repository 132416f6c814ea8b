"""TorchRec by its documentation: DLRM, DistributedModelParallel with the planner's own plan, a TensorDataset."""

import os

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.peers.curve import Point, Task, measure
from benchmarks.peers.rows import DENSE_ARCH, DIM, EPS, NUM_DENSE, NUM_SPARSE, OVER_ARCH, Rows, load_tables

NAMES = [f"cat_{i}" for i in range(NUM_SPARSE)]


class _Batch:
    """What DLRMTrain reads."""

    def __init__(self, rows: Rows, device: torch.device) -> None:
        labels, dense, ids = (torch.as_tensor(array) for array in rows)
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        sparse = KeyedJaggedTensor(keys=NAMES, values=ids.t().reshape(-1), lengths=lengths)
        self.dense_features, self.labels = dense.to(device), labels.int().to(device)
        self.sparse_features = sparse.to(device)


def run(task: Task) -> list[Point]:
    """Train and evaluate."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(task.seed)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    device = torch.device(task.device)
    backend = "gloo" if task.device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer = build(task, device)

    def train(rows: Rows) -> None:
        dataset = TensorDataset(*(torch.from_numpy(array) for array in rows))
        model.train()
        for batch in DataLoader(
            dataset, sampler=BatchSampler(RandomSampler(dataset), task.batch, drop_last=True), batch_size=None
        ):
            optimizer.zero_grad()
            loss, _ = model(_Batch(Rows(*batch), device))
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    def predict(rows: Rows) -> NDArray[np.float32]:
        model.eval()
        with torch.no_grad():
            _, (_, logits, _) = model(_Batch(rows, device))
        return np.asarray(logits.cpu())

    return measure(task, task.parts(), train, predict)


def build(task: Task, device: torch.device) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The sharded model and its optimizer."""
    tables = [
        EmbeddingBagConfig(name=f"t_{name}", feature_names=[name], num_embeddings=count, embedding_dim=DIM)
        for name, count in zip(NAMES, load_tables(task.work), strict=True)
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    inner = DLRMTrain(DLRM(collection, NUM_DENSE, list(DENSE_ARCH), list(OVER_ARCH)))
    tables_rate = {"lr": task.rate, "eps": EPS}
    apply_optimizer_in_backward(torch.optim.Adagrad, inner.model.sparse_arch.parameters(), tables_rate)
    model = DistributedModelParallel(inner, device=device)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: torch.optim.Adagrad(parameters, lr=task.rate, eps=EPS),
    )
    return model, CombinedOptimizer([model.fused_optimizer, dense])
