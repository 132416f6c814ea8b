"""TorchRec by its documentation: DLRM, DistributedModelParallel with the planner's own plan, a TensorDataset."""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.peers.rows import DENSE_ARCH, DIM, LEARNING_RATE, NUM_DENSE, OVER_ARCH, Rows


def seconds_of_epoch(rows: Rows, batch_size: int, threads: int, device_name: str = "cpu") -> float:
    """Seconds to train on all rows once."""
    torch.set_num_threads(threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    device = torch.device(device_name)
    dist.init_process_group(
        "gloo" if device_name == "cpu" else "cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1
    )
    names = [f"cat_{i}" for i in range(len(rows.tables))]
    collection = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=f"t_{name}", feature_names=[name], num_embeddings=count, embedding_dim=DIM)
            for name, count in zip(names, rows.tables, strict=True)
        ],
        device=torch.device("meta"),
    )
    train = DLRMTrain(DLRM(collection, NUM_DENSE, list(DENSE_ARCH), list(OVER_ARCH)))
    apply_optimizer_in_backward(torch.optim.SGD, train.model.sparse_arch.parameters(), {"lr": LEARNING_RATE})
    model = DistributedModelParallel(train, device=device)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
    )
    optimizer = CombinedOptimizer([model.fused_optimizer, dense])
    tensors = (torch.from_numpy(array) for array in (rows.labels, rows.dense, rows.sparse))
    loader = DataLoader(TensorDataset(*tensors), batch_size, shuffle=True, drop_last=True)
    lengths = torch.ones(len(names) * batch_size, dtype=torch.int32)
    began, count = time.perf_counter(), 0
    for labels, dense_features, ids in loader:
        sparse = KeyedJaggedTensor(keys=names, values=ids.t().reshape(-1), lengths=lengths)
        optimizer.zero_grad()
        loss, _ = model(_Batch(dense_features.to(device), sparse.to(device), labels.int().to(device)))
        loss.backward()
        optimizer.step()
        count += len(labels)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * len(rows.labels) / count


class _Batch:
    """What DLRMTrain reads."""

    def __init__(self, dense: torch.Tensor, sparse: KeyedJaggedTensor, labels: torch.Tensor) -> None:
        self.dense_features, self.sparse_features, self.labels = dense, sparse, labels
