"""A model on this process: scoring of rows, and what training needs, built from a configuration."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec.optim.keyed import CombinedOptimizer

from app.config import AppConfig, Compile, Precision
from app.config.runtime import require_graphs
from app.config.train import samples_of
from app.data.batch import Batch, copied_ahead, layout_of
from app.data.events import EventReader
from app.data.shards import SPLITS_OF_EVENTS
from app.data.split import SplitReader
from app.metrics.clicks import click_metrics, click_sums, histogram_metrics, score_counts
from app.metrics.curves import MAX_SAMPLES
from app.metrics.documents import EvaluationFigures
from app.metrics.users import user_metrics
from app.model.losses import make_loss
from app.model.make import make_model, make_tables
from app.model.tables import initial_rows, table_of
from app.optimizer.build import fused_params, make_optimizer, set_learning_rate, set_step
from app.optimizer.schedule import learning_rate
from app.record import provenance
from app.record.documents import Dataset, TableSize
from app.runtime.platform import Runtime
from app.sharding import from_config
from app.sharding.execute import distribute, fill_tables, table_blocks, table_weights
from app.sharding.plan import Plan
from app.training.window import FiniteChecks
from common.documents import convert, decode, encode
from common.errors import UserError
from common.files import digest_file
from data_prep.dataset.event_schema import USER
from data_prep.dataset.events import event_schema
from data_prep.dataset.format import Manifest
from data_prep.dataset.unseen import unseen_values

log = logging.getLogger("clickwork")

MAX_SOURCES = 30  # names of raw files in a manifest

Interrupted = Callable[[int], bool]


class Scores(NamedTuple):
    """Samples' logits and labels [n] float32, and of events their users' ids [n] int32; of rows none.

    tasks: logits and labels of each of data.events.tasks.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    users: NDArray[np.int32]
    tasks: list[tuple[NDArray[np.float32], NDArray[np.float32]]]


class Evaluation(NamedTuple):
    """A split's click metrics, with its name and number of samples, the same on all processes.

    logits, labels: [n] float32 on rank 0, none elsewhere; a part of them if the AUC is from a histogram.
    """

    figures: EvaluationFigures
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]


class EvaluationInterrupted(Exception):
    """Raised inside an evaluation when the run was asked to stop: it begins again when the run is resumed."""


def _figures(split: str, samples: int, metrics: Mapping[str, object]) -> EvaluationFigures:
    """Metrics of a split's samples."""
    return convert({"split": split, "samples": samples, **metrics}, EvaluationFigures)


@dataclass
class Predictor:
    """A model, sharded or not, that scores a dataset's rows on this process's device."""

    config: AppConfig
    runtime: Runtime
    root: Path  # of the dataset
    manifest: Manifest
    model: Any  # DistributedModelParallel, or a DLRM that each process has whole
    _splits: dict[str, SplitReader | EventReader] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.config.model.mixes_samples:
            log.warning(
                "model.mixes_samples=true: a sample's logit depends on the other rows of its batch, so every "
                "metric depends on eval.global_batch_size (%d) and on the number of processes (%d)",
                self.config.eval.global_batch_size,
                self.runtime.world_size,
            )

    def split(self, name: str) -> SplitReader | EventReader:
        """A split of the dataset, opened once for this process."""
        if name not in self._splits:
            config, rank, world_size = self.config, self.runtime.rank, self.runtime.world_size
            if config.model.hstu is None:
                self._splits[name] = SplitReader(
                    self.root, self.manifest, name, config.data, rank, world_size, config.train.drop_last
                )
            else:
                self._splits[name] = self._events.split(name)
        return self._splits[name]

    @cached_property
    def _events(self) -> EventReader:
        rank, world_size, hstu = self.runtime.rank, self.runtime.world_size, self.config.model.hstu
        assert hstu is not None
        return EventReader(self.root, self.manifest, self.config.data, rank, world_size, hstu)

    def samples(self, steps: int) -> int:
        """Samples of the run's first steps."""
        train = self.config.train
        return samples_of(train, 0 if train.drop_last else self.manifest.splits["train"].rows, steps)

    def split_rows(self) -> dict[str, int]:
        """Rows of each split; of a dataset of events, samples."""
        if self.manifest.is_events:
            return {name: self.split(name).rows for name in SPLITS_OF_EVENTS}
        return {name: split.rows for name, split in self.manifest.splits.items()}

    def on_device(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches moved to this process's device."""
        device = self.runtime.device
        return batches if device.type == "cpu" else copied_ahead(batches, device)

    def autocast(self, cached: bool = True) -> torch.autocast:
        """The configured precision of the dense layers. cached: a weight is cast once, however often it is used."""
        bf16 = self.config.runtime.precision is Precision.bf16
        return torch.autocast(self.runtime.device.type, torch.bfloat16, bf16, cached)

    def forward(self, batch: Batch) -> Tensor:
        """Logits float32 as a batch's labels on the device, [B], the dense layers in the configured precision."""
        with self.autocast():
            logits: Tensor = self.model(*batch.inputs)
            return logits.flatten() if batch.labels.ndim == 1 else logits

    def score(self, batches: Iterator[Batch], interrupted: Interrupted = lambda batches_done: False) -> Scores:
        """Scores of these batches' valid samples, on the CPU.

        Raises:
            EvaluationInterrupted: `interrupted`, called with the number of batches done, returned true.
        """
        was_training = self.model.training
        self.model.eval()
        logits, labels, users = [torch.empty(0)], [torch.empty(0)], [torch.empty(0, dtype=torch.int32)]
        try:
            with torch.no_grad():
                for number, batch in enumerate(self.on_device(batches)):
                    if interrupted(number):
                        raise EvaluationInterrupted
                    logits.append(self.forward(batch)[: batch.num_valid].cpu())
                    labels.append(batch.labels[: batch.num_valid].cpu())
                    if batch.sequences is not None:
                        users.append(batch.sparse_features[USER].values()[: batch.num_valid].cpu())
        finally:
            self.model.train(was_training)
        scores, truth, ids = (torch.cat(parts).numpy() for parts in (logits, labels, users))
        if scores.ndim == 1:
            return Scores(scores, truth, ids, [])
        return Scores(scores[:, 0], truth[:, 0], ids, [*zip(scores.T[1:], truth.T[1:], strict=True)])

    def evaluate(self, name: str, interrupted: Interrupted = lambda batches_done: False) -> Evaluation:
        """Metrics of a whole split, all processes' samples pooled; a collective call.

        Raises as `score`, and UserError for logits that are not finite.

        Rank 0 alone collects and sorts the scores; of more than eval.exact_rows, processes add up histograms.
        """
        split, runtime = self.split(name), self.runtime
        wanted = min(self.config.eval.global_batch_size, split.rows)
        batch_size = max(1, -(-wanted // runtime.world_size)) * runtime.world_size
        logits, labels, users, tasks = self.score(split.eval_batches(batch_size), interrupted)
        self._require_finite([logits, *(scores for scores, _ in tasks)], split.rows, name)
        if split.rows > self.config.eval.exact_rows:
            sums = np.sum(runtime.gather(click_sums(logits, labels)), axis=0)
            figures = histogram_metrics(runtime.total(score_counts(logits, labels)), sums)
            stride = -(-split.rows // MAX_SAMPLES)
            logits, labels = (runtime.to_rank_0(values[::stride]) for values in (logits, labels))
            return Evaluation(_figures(name, split.rows, figures), logits, labels)
        logits, labels, users = runtime.to_rank_0(logits), runtime.to_rank_0(labels), runtime.to_rank_0(users)
        others = [(runtime.to_rank_0(scores), runtime.to_rank_0(truth)) for scores, truth in tasks]

        def measured() -> str:
            by_user = {} if self.config.model.hstu is None else user_metrics(logits, labels, users)
            names = self.config.data.events.tasks
            aucs = {f"auc_{name}": click_metrics(*task)["auc"] for name, task in zip(names, others, strict=False)}
            return encode(_figures(name, split.rows, {**click_metrics(logits, labels), **by_user, **aucs}))

        text = runtime.on_rank_0(measured)
        return Evaluation(decode(text, EvaluationFigures), logits, labels)

    def _require_finite(self, scores: list[NDArray[np.float32]], rows: int, name: str) -> None:
        """Raises UserError on all processes if one has logits that no metric is defined for."""
        bad = np.logical_or.reduce([~np.isfinite(logits) for logits in scores])
        if count := int(self.runtime.total(np.array([np.count_nonzero(bad)]))[0]):
            raise UserError(
                f"split {name}: {count:,} of {rows:,} logits are not finite, and no metric is defined for "
                "them: lower optimizer.lr and train again, or choose an earlier checkpoint"
            )


@dataclass
class Session(Predictor):
    """Everything training needs on this process: the sharded model, its loss and its optimizer."""

    plan: Plan
    optimizer: CombinedOptimizer
    loss: Callable[[Tensor, Tensor], Tensor]  # logits and labels of a batch to their loss

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        """The training loss of a batch, of which the mean of all processes is that over the global batch's rows."""
        if batch.share == 1:
            return self.loss(logits, batch.labels)
        if not batch.num_valid:
            return logits.sum() * 0  # other processes' backward waits for this one's
        return batch.share * self.loss(logits[: batch.num_valid], batch.labels[: batch.num_valid])

    @property
    def is_logloss(self) -> bool:
        """Whether the training loss is the logloss of the samples trained on."""
        return self.config.loss.is_logloss and _loss_factor(self.config) == 1

    def compile(self, batch_size: int) -> None:
        """Make the programs of runtime.compile, to train from step 0 with batch_size samples a process.

        A collective call.

        Raises:
            UserError: there is no compiler, or no GPU.
        """
        if self.config.runtime.compile is Compile.dense:
            self.model.module.compile_dense_layers()
        elif self.config.runtime.compile is Compile.step:
            device, features = self.runtime.device, list(self.manifest.num_embeddings)
            require_graphs(self.config.runtime, device.type)
            dense_features = torch.zeros(batch_size, len(self.manifest.schema.get("dense", [])), device=device)
            one_id_each = layout_of(features, [np.ones(batch_size, np.int64)] * len(features))
            ids = torch.zeros(len(features) * batch_size, dtype=torch.int32, device=device)
            autocast = partial(self.autocast, cached=False)
            self.model.module.capture_dense_layers(dense_features, one_id_each.bags(ids), autocast)
            set_step(self.optimizer, 0)  # the example was a step to FBGEMM's Adam

    def begin_step(self, step: int) -> float:
        """Set the rates of a step, and what its dropout draws from; return the rate of dense parameters."""
        hstu = self.config.model.hstu
        if hstu is not None and (hstu.input_dropout or hstu.linear_dropout):
            key = np.random.SeedSequence([self.config.train.seed, step, self.runtime.rank])
            torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        rates, schedule = self.config.optimizer, self.config.schedule
        lr = learning_rate(rates.lr, schedule, step)
        set_learning_rate(self.optimizer, lr, learning_rate(rates.table_lr, schedule, step))
        return lr

    def is_finite(self, loss: Tensor) -> bool:
        """Return whether the loss is finite on all processes; waits for the device."""
        return self.runtime.highest(float(not torch.isfinite(loss))) == 0

    def finite_checks(self) -> FiniteChecks:
        """Checks of each step's values, from now on."""
        return FiniteChecks(self.dense_parameters())

    def describe_dataset(self) -> Dataset:
        """The dataset in a run's manifest; `bayes` are the figures of a ground-truth model, if the dataset has one."""
        manifest = self.manifest
        labels = {name: split.labels_digest for name, split in manifest.splits.items() if not manifest.is_events}
        return Dataset(
            path=str(self.root),
            digest=manifest.digest,
            rows=self.split_rows(),
            labels={**labels},
            label_rate=manifest.label_rate,
            encoding=manifest.encoding.get("name"),
            sources=[source.get("name") for source in manifest.sources[:MAX_SOURCES]],
            bayes=manifest.extra.get("bayes"),
            unseen=unseen_values(manifest),
        )

    def describe_files(self) -> dict[str, str]:
        """SHA-256, by path, of the files that initial values came from (row_weights_path)."""
        embeddings = getattr(self.model.module.sparse_arch, "embeddings", [])
        paths = [embedding.row_weights_path for embedding in embeddings if embedding.row_weights_path is not None]
        return {path: digest_file(Path(path)).sha256 for path in paths}

    def describe_tables(self) -> dict[str, TableSize]:
        """Size of each whole table, and the ids looked up in it; bytes are of its weights alone."""
        bag_sizes, arch = from_config.bag_sizes_of(self.config, self.root, self.manifest), self.model.module.sparse_arch
        features = {table.name: [arch.feature_of[key] for key in table.keys] for table in arch.tables}
        by_id = {table.name: table.by_id for table in arch.tables}  # its rows travel, not sums of them
        return {
            name: TableSize(
                features=len(features[name]),
                by_id=by_id[name],
                ids_per_sample=sum(bag_sizes[feature] for feature in features[name]),
                num_embeddings=weight.size(0),
                embedding_dim=weight.size(1),
                bytes=weight.size(0) * weight.size(1) * weight.dtype.itemsize,
            )
            for name, weight in table_weights(self.model)
        }

    def parameter_counts(self) -> dict[str, int]:
        """Numbers of embedding and dense parameters of the whole model."""
        embedding = sum(table.num_embeddings * table.embedding_dim for table in self.model.module.sparse_arch.tables)
        dense = sum(parameter.numel() for parameter in self.dense_parameters().values())
        return {"embedding": embedding, "dense": dense, "total": embedding + dense}

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """All parameters but tables, by name and in its order."""
        named = sorted(self.model.named_parameters(), key=lambda item: item[0])
        return {name: parameter for name, parameter in named if not table_of(name)}

    def parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Tables in order, large ones in blocks of rows, then dense parameters by name.

        A collective call: every process must exhaust the iterator; only rank 0's yields.
        """
        for name, weight in table_weights(self.model):
            for block in table_blocks(weight):
                yield name, block.numpy()
        for name, parameter in self.dense_parameters().items():
            if self.runtime.rank == 0:
                yield name, parameter.detach().cpu().numpy()

    def parameters_digest(self) -> str:
        """SHA-256 over the bytes of all parameters; a collective call, valid on rank 0."""
        return provenance.parameters_digest(values for _, values in self.parameters())


def build(config: AppConfig, runtime: Runtime, root: Path, manifest: Manifest, initial: bool = True) -> Session:
    """Declare, shard and initialise the model and its optimizer; a collective call.

    initial: as of `make_sparse_arch`.

    Raises:
        UserError: the dataset does not fit the configuration.
    """
    if config.model.hstu is None and manifest.is_events:
        raise UserError(f"{root}: holds events, not rows, which DLRM learns from; give model=hstu (docs/sequences.md)")
    events = event_schema(root, manifest) if config.model.hstu is not None else None
    if not manifest.num_embeddings:
        raise UserError(f"{root}: DLRM needs at least one sparse feature")
    torch.manual_seed(config.train.seed)  # dense layers draw from it, in the order of their declaration
    multi_hot = from_config.multi_hot_features(config, manifest)
    sparse_arch = make_tables(config.model, manifest.num_embeddings, events, multi_hot, initial)
    plan = from_config.plan_for(config, runtime, sparse_arch, from_config.bag_sizes_of(config, root, manifest))
    num_dense = len(manifest.schema.get("dense", []))
    model = distribute(
        make_model(
            config.model, sparse_arch, num_dense, len(manifest.num_embeddings), events, config.data.events.num_tasks
        ),
        plan,
        fused_params(config.optimizer),
        config.sharding.qcomm,
        runtime.device,
    )
    tables = {table.name: table for table in sparse_arch.tables}

    fill_tables(model, lambda table, start, stop: initial_rows(config.train.seed, tables[table], start, stop))
    return Session(
        config, runtime, root, manifest, model, plan, make_optimizer(model, config.optimizer),
        make_loss(config.loss, _loss_factor(config)),
    )  # fmt: skip


def _loss_factor(config: AppConfig) -> float:
    """What the mean loss over samples and tasks is multiplied by: tasks are added."""
    return 1.0 if config.model.hstu is None else config.model.hstu.loss_weight * config.data.events.num_tasks
