"""The parts that train on this process: the sharded model, its optimizer and loss, and the rates of a step."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec.optim.keyed import CombinedOptimizer

from app.config import AppConfig, Compile
from app.config.runtime import require_graphs
from app.data.batch import Batch, layout_of
from app.model.losses import Loss, make_loss
from app.model.tables import table_of
from app.optimizer.build import fused_params, make_optimizer, set_learning_rate, set_step
from app.optimizer.norm import total_norm
from app.optimizer.schedule import learning_rate
from app.record import provenance
from app.runtime.platform import Runtime
from app.sharding.execute import table_blocks, table_weights
from app.sharding.plan import Plan
from app.training.build import sharded_model
from app.training.labels import task_of
from app.training.predictor import Predictor
from app.training.recording.table_figures import TableMeter
from common.errors import UserError
from data_prep.dataset.format import Manifest


@dataclass
class Session:
    """Everything training needs on this process: the sharded model, its loss and its optimizer.

    Attributes:
        predictor: the model and its dataset, without what training adds.
    """

    predictor: Predictor
    plan: Plan
    optimizer: CombinedOptimizer
    loss: Loss  # maps a batch's logits and labels to its loss
    loss_factor: float  # factor of the mean loss over samples and tasks
    _step: int = field(default=0, init=False)  # the step that was begun last
    cuts: int = field(default=0, init=False)  # cuts of the learning rate so far; evaluations decide them

    @property
    def config(self) -> AppConfig:
        """The run's configuration."""
        return self.predictor.config

    @property
    def runtime(self) -> Runtime:
        """This process of the job."""
        return self.predictor.runtime

    @property
    def root(self) -> Path:
        """The dataset's directory."""
        return self.predictor.root

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return self.predictor.manifest

    @property
    def model(self) -> Any:
        """The sharded model."""
        return self.predictor.model

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return a batch's loss; averaged over ranks (micro-batches: summed), it is the global batch's mean loss."""
        if self.predictor.micro_batches is not None:
            return self.predictor.micro_batches.loss(self.loss, batch)
        if batch.share == 1:
            return self.loss(logits, *batch.targets())
        if not batch.num_valid:
            # The loss stays in the graph, since other processes' backward waits for this one's.
            return logits.sum() * 0
        return batch.share * self.loss(logits[: batch.num_valid], *batch.targets(slice(batch.num_valid)))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of dense parameters and update FBGEMM's tables."""
        if self.predictor.micro_batches is not None:
            self.predictor.micro_batches.backward()
        else:
            loss.backward()

    @property
    def is_logloss(self) -> bool:
        """Whether the training loss is the logloss of the samples trained on."""
        return self.config.loss.is_logloss and self.loss_factor == 1

    def compile(self, batch_size: int) -> None:
        """Compile or record what runtime.compile asks for, to train from step 0 with batch_size samples a process.

        A collective call.
        """
        compiled = self.config.runtime.compile
        if self.config.model.batch_norm and self.runtime.world_size > 1 and compiled in (Compile.dense, Compile.step):
            raise UserError(
                f"runtime.compile={compiled.value}: cannot hold the exchange of model.batch_norm between "
                f"{self.runtime.world_size} processes; give runtime.compile=none"
            )
        if compiled is Compile.dense:
            self.model.module.compile_dense_layers()
        elif compiled is Compile.step:
            device, features = self.runtime.device, list(self.manifest.num_embeddings)
            require_graphs(self.config.runtime, device.type)
            dense_features = torch.zeros(batch_size, len(self.manifest.schema.get("dense", [])), device=device)
            one_id_each = layout_of(features, [np.ones(batch_size, np.int64)] * len(features))
            ids = torch.zeros(len(features) * batch_size, dtype=torch.int32, device=device)
            autocast = partial(self.predictor.autocast, cached=False)
            self.model.module.capture_dense_layers(dense_features, one_id_each.bags(ids), autocast)
            set_step(self.optimizer, 0)  # FBGEMM's Adam counted the example as a step

    def begin_step(self, step: int) -> float:
        """Set the learning rates of a step; return the dense parameters' rate."""
        self._step = step
        rates, schedule = self.config.optimizer, self.config.schedule
        lr = learning_rate(rates.lr, schedule, step, self.cuts)
        set_learning_rate(self.optimizer, lr, learning_rate(rates.table_lr, schedule, step, self.cuts))
        return lr

    def forward(self, batch: Batch) -> Tensor:
        """Return a batch's logits, as `Predictor.forward` does; in training, call `begin_step` first.

        In training, dropout is active and batch norm uses the batch's own rows.
        """
        if self.model.training and self.predictor.micro_batches is None:
            rows, seed = len(batch.labels), self.config.train.seed
            num_valid = None if batch.num_valid == rows else batch.num_valid
            self.model.module.begin_step(seed, self._step, self.runtime.rank, rows, num_valid)
        return self.predictor.forward(batch, self._draw)

    def _draw(self, first_row: int, num_valid: int) -> None:
        """Draw the dropout masks of the micro-batch that begins at this row of the global batch."""
        size = self.config.train.micro_batch
        if self.model.training and size is not None:
            self.model.module.begin_step(self.config.train.seed, self._step, first_row // size, size, num_valid)

    def undo_step(self) -> None:
        """Undo what a step's forward has changed."""
        self.model.module.undo_step()

    def is_finite(self, loss: Tensor) -> bool:
        """Return whether the loss is finite on all processes; waits for the device."""
        return self.runtime.highest(float(not torch.isfinite(loss))) == 0

    def gradient_norm(self) -> Tensor:
        """Return the 2-norm of the dense parameters' gradients, a scalar on the device; call after a backward."""
        return total_norm(p.grad for p in self.dense_parameters().values() if p.grad is not None)

    def parameter_counts(self) -> dict[str, int]:
        """Return the numbers of embedding and dense parameters of the whole model."""
        embedding = sum(table.num_embeddings * table.embedding_dim for table in self.model.module.sparse_arch.tables)
        dense = sum(parameter.numel() for parameter in self.dense_parameters().values())
        return {"embedding": embedding, "dense": dense, "total": embedding + dense}

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters except tables by name, in the order of the names."""
        parameters = sorted(self.model.named_parameters(), key=lambda item: item[0])
        return {name: parameter for name, parameter in parameters if not table_of(name)}

    def parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield tables, large ones in blocks of rows, then dense parameters and batch norm's statistics, by name.

        A collective call: every process must exhaust the iterator; only rank 0's yields.
        """
        for name, weight in table_weights(self.model):
            for block in table_blocks(weight):
                yield name, block.numpy()
        for name, parameter in [*self.dense_parameters().items(), *sorted(self.model.module.statistics().items())]:
            if self.runtime.rank == 0:
                yield name, parameter.detach().cpu().numpy()

    def parameters_digest(self, meter: TableMeter | None = None) -> str:
        """Return the SHA-256 over the bytes of all parameters; a collective call, valid on rank 0.

        meter: measures the tables while they pass.
        """
        parameters = self.parameters()
        return provenance.parameters_digest(
            (values for _, values in parameters) if meter is None else meter.watch(parameters)
        )


def build(config: AppConfig, runtime: Runtime, root: Path, manifest: Manifest) -> Session:
    """Declare, shard and initialise the model and its optimizer; a collective call."""
    model, plan = sharded_model(config, runtime, root, manifest, fused_params(config.optimizer))
    optimizer = make_optimizer(model, config.optimizer)
    mean_weight = manifest.encoding.get("mean_weight", 1.0)
    factor = 1.0 if config.model.parts is None else config.model.parts.loss_factor(config)
    loss = make_loss(config.loss, factor, task_of(manifest), mean_weight)
    return Session(Predictor(config, runtime, root, manifest, model), plan, optimizer, loss, factor)
