"""Model, optimizer and loss of a training step, batches on the device, and the window of losses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.streamable import Pipelineable

from app.config.app_config import AppConfig
from app.config.sharding import Plan
from app.config.train import Compile, require_graphs
from app.data.batch import Batch, layout_of, pinned_ahead
from app.metrics.documents import Measured, TrainEvent
from app.metrics.timing import PHASES, StepTimer
from app.model.dlrm import Loss, make_loss
from app.model.embeddings import INIT_BLOCK_ROWS, TableSpec, initial_rows, table_of
from app.optimizer import fused_params, learning_rate, make_optimizer, set_learning_rate, set_step, total_norm
from app.record import provenance
from app.runtime.platform import Runtime
from app.sharding.plan import table_blocks, table_weights
from app.training.predictor import Predictor, sharded_model, task_of
from app.training.state import RunLength, RunState
from common.command import log
from common.documents import Figures
from common.errors import UserError, last_line
from common.files import format_bytes
from data_prep.dataset.format import Manifest

MAX_BLOCKS = 8  # blocks of INIT_BLOCK_ROWS rows; a larger table is sampled by this many, evenly spaced


class TableMeter:
    """Counts and norms of table rows, measured while their blocks pass by for another purpose."""

    def __init__(self, tables: Sequence[TableSpec], seed: int, counts_touched: bool) -> None:
        """seed: of the initial values. counts_touched: whether a row's values change only if it is looked up."""
        self._tables, self._seed, self._counts_touched = {table.name: table for table in tables}, seed, counts_touched
        self._rows_seen = dict.fromkeys(self._tables, 0)
        self._norms: dict[str, list[NDArray[np.float32]]] = {name: [] for name in self._tables}
        self._touched = dict.fromkeys(self._tables, 0)

    def watch(self, parameters: Iterable[tuple[str, NDArray[np.float32]]]) -> Iterator[NDArray[np.float32]]:
        """Yield the arrays of parameters as they come; a table comes in consecutive blocks of rows [rows, d]."""
        for name, values in parameters:
            if name in self._tables:
                self._measure(self._tables[name], values)
            yield values

    def _measure(self, table: TableSpec, values: NDArray[np.float32]) -> None:
        """Add the next rows of a table, as far as its figures cover them, to its norms and counts."""
        start = self._rows_seen[table.name]
        stop = self._rows_seen[table.name] = start + len(values)
        number = -(-table.num_embeddings // INIT_BLOCK_ROWS)
        blocks: Iterable[int] = range(number)
        # A vocabulary's ids fall in frequency, so the first blocks alone would show its most used rows only.
        if number > MAX_BLOCKS:
            blocks = [int((place + 0.5) * number / MAX_BLOCKS) for place in range(MAX_BLOCKS)]
        for block in blocks:
            first, last = max(start, block * INIT_BLOCK_ROWS), min(stop, (block + 1) * INIT_BLOCK_ROWS)
            if first >= last:
                continue
            rows = values[first - start : last - start]
            self._norms[table.name].append(np.sqrt(np.einsum("rd,rd->r", rows, rows)))
            if self._counts_touched:
                initial = initial_rows(self._seed, table, first, last)
                # A row in fp16 can only equal its initial values as they were rounded for storage.
                if table.storage == "fp16":
                    initial = initial.astype(np.float16).astype(np.float32)
                self._touched[table.name] += int((rows != initial).any(axis=1).sum())

    def figures(self) -> dict[str, Figures]:
        """Return figures by table name of those that passed by; of a large table only the sampled rows count."""
        return {
            name: {
                "rows": len(norms := np.concatenate(parts)),
                "rows_touched": self._touched[name] if self._counts_touched else None,
                "mean_norm": float(norms.mean(dtype=np.float64)),
                "largest_norm": float(norms.max()),
            }
            for name, parts in self._norms.items()
            if parts
        }


GRAPH_BYTES = 1 << 28  # vectors of a batch beyond which plain steps are faster: 109 MB gained 2 %, 872 MB lost 5 %


@dataclass
class Session(Predictor):
    """Everything training needs on this process: the sharded model, its loss and its optimizer."""

    plan: Plan
    optimizer: CombinedOptimizer
    loss: Loss  # maps a batch's logits and labels to its loss
    loss_factor: float  # factor of the mean loss over samples and tasks
    _step: int = field(default=0, init=False)  # the step that was begun last
    compiled: Compile = field(default="none", init=False)  # what `compile` made of runtime.compile
    compile_reason: str = field(default="", init=False)  # why `auto` became that
    cuts: int = field(default=0, init=False)  # cuts of the learning rate so far; evaluations decide them

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return a batch's loss; averaged over ranks (micro-batches: summed), it is the global batch's mean loss."""
        if self.micro_batches is not None:
            return self.micro_batches.loss(self.loss, batch)
        if batch.share == 1:
            return self.loss(logits, *batch.targets())
        if not batch.num_valid:
            # The loss stays in the graph, since other processes' backward waits for this one's.
            return logits.sum() * 0
        return batch.share * self.loss(logits[: batch.num_valid], *batch.targets(slice(batch.num_valid)))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of dense parameters and update FBGEMM's tables."""
        if self.micro_batches is not None:
            self.micro_batches.backward()
        else:
            loss.backward()

    @property
    def is_logloss(self) -> bool:
        """Return whether the training loss is the logloss of the samples trained on."""
        return self.config.loss.is_logloss and self.loss_factor == 1

    def compile(self, batch_size: int) -> None:
        """Compile or record what runtime.compile asks for, to train from step 0 with batch_size samples a process.

        A collective call.
        """
        setting = self.config.runtime.compile or "none"
        self.compiled = setting
        if setting == "auto":
            obstacle = self._obstacle_to_graphs(batch_size)
            self.compiled = "none" if obstacle else "step"
            self.compile_reason = obstacle or "CUDA graphs of the dense layers"
        if self.config.model.batch_norm and self.runtime.world_size > 1 and self.compiled != "none":
            raise UserError(
                f"runtime.compile={setting}: cannot hold the exchange of model.batch_norm between "
                f"{self.runtime.world_size} processes; give runtime.compile=none"
            )
        if self.compiled == "dense":
            self.model.module.compile_dense_layers()
        elif self.compiled == "step":
            require_graphs(self.config.runtime, self.runtime.device.type)  # of `step` alone
            try:
                device, features = self.runtime.device, list(self.manifest.num_embeddings)
                dense_features = torch.zeros(batch_size, len(self.manifest.schema.get("dense", [])), device=device)
                # Pooled vectors have one size, whatever the bags, so one id per bag stands for all batches.
                one_id_each = layout_of(features, [np.ones(batch_size, np.int64)] * len(features))
                ids = torch.zeros(len(features) * batch_size, dtype=torch.int32, device=device)
                # A replayed graph would always read the weights that autocast cast and cached while it was recorded.
                autocast = partial(self.autocast, cached=False)
                self.model.module.capture_dense_layers(dense_features, one_id_each.bags(ids), autocast)
            except RuntimeError as error:
                if setting != "auto":
                    raise
                self.undo_step()  # batch norm's statistics, which the example moved
                self.compiled = "none"
                self.compile_reason = f"this step cannot be recorded ({last_line(str(error), type(error).__name__)})"
            set_step(self.optimizer, 0)  # FBGEMM's Adam counted the example as a step

    def _obstacle_to_graphs(self, batch_size: int) -> str:
        """Return why a step may not be replayed as a CUDA graph, which fits one shape of batches; empty if it may."""
        config = self.config
        vector_bytes = 4 * batch_size * len(self.manifest.num_embeddings) * config.model.embedding_dim
        obstacles = {
            "the device is a CPU": self.runtime.device.type == "cpu",
            "no graph has run on ROCm": self.runtime.platform == "rocm",
            f"{self.runtime.world_size} processes": self.runtime.world_size > 1,
            config.model.kind.label: bool(config.model.kind.commands),  # which a graph is not written for
            "train.deterministic=layout": config.train.micro_batch is not None,
            "train.drop_last=false": not config.train.drop_last,
            # Vectors are copied to the graph's memory, which took longer than the launches saved on an H100.
            f"a step would copy {format_bytes(vector_bytes)} to its graph": vector_bytes > GRAPH_BYTES,
        }
        return next((obstacle for obstacle, is_here in obstacles.items() if is_here), "")

    def begin_step(self, step: int) -> float:
        """Set the learning rates of a step; return the dense parameters' rate."""
        self._step = step
        rates, schedule = self.config.optimizer, self.config.schedule
        lr = learning_rate(rates.lr, schedule, step, self.cuts)
        set_learning_rate(self.optimizer, lr, learning_rate(rates.table_lr, schedule, step, self.cuts))
        return lr

    def forward(self, batch: Batch) -> Tensor:
        """Return a batch's logits, as of `Predictor`; in training, call `begin_step` first.

        In training, dropout is active and batch norm uses the batch's own rows.
        """
        if self.model.training and self.micro_batches is None:
            rows, seed = len(batch.labels), self.config.train.seed
            # None says that no row is padding, so that one process can take torch's own batch norm, with its bits.
            num_valid = None if batch.num_valid == rows else batch.num_valid
            self.model.module.begin_step(seed, self._step, self.runtime.rank, rows, num_valid)
        return super().forward(batch)

    def draw(self, first_row: int, num_valid: int) -> None:
        """Draw the dropout masks of the micro-batch that begins at this row of the global batch."""
        size = self.config.train.micro_batch
        if self.model.training and size is not None:
            self.model.module.begin_step(self.config.train.seed, self._step, first_row // size, size, num_valid)

    def undo_step(self) -> None:
        """Set batch norm's running statistics, all that a forward changes, back to those before the step."""
        self.model.module.undo_step()

    def is_finite(self, loss: Tensor) -> bool:
        """Return whether the loss is finite on all processes; waits for the device."""
        # A NaN of one process would reach all others with its gradients, so they decide alike.
        return self.runtime.highest(float(not torch.isfinite(loss))) == 0

    def gradient_norm(self) -> Tensor:
        """Return the 2-norm of the dense parameters' gradients, a scalar on the device; call after a backward."""
        gradients = (parameter.grad for parameter in self.dense_parameters().values())
        return total_norm(gradient for gradient in gradients if gradient is not None)

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters except tables by name, in the order of the names."""
        # The digest goes by names, which do not depend on the order in which wrappers list parameters.
        parameters = sorted(self.model.named_parameters(), key=lambda item: item[0])
        return {name: parameter for name, parameter in parameters if not table_of(name)}

    def parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield names and values: tables as declared, then dense parameters, then batch norm's statistics, by name.

        A large table comes in blocks [rows, D], all under its name. A run's digest is of this order.
        A collective call: every process must exhaust the iterator; only rank 0's yields.
        """
        for name, weight in table_weights(self.model):
            # A table comes in blocks, so that rank 0 needs memory for one block of it only.
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
        # The tables pass only once, for the digest and their figures together.
        values = (array for _, array in parameters) if meter is None else meter.watch(parameters)
        return provenance.parameters_digest(values)


def build(config: AppConfig, runtime: Runtime, root: Path, manifest: Manifest) -> Session:
    """Declare, shard and initialise the model and its optimizer; a collective call."""
    model, plan = sharded_model(config, runtime, root, manifest, fused_params(config.optimizer))
    optimizer = make_optimizer(model, config.optimizer)
    mean_weight = manifest.encoding.get("mean_weight", 1.0)
    factor = 1.0 if config.model.parts is None else config.model.parts.loss_factor(config)
    loss = make_loss(config.loss, factor, task_of(manifest), mean_weight)
    return Session(config, runtime, root, manifest, model, plan, optimizer, loss, factor)


MAX_SKIPPED = 10  # consecutive steps; more of them mean a lost model, not a bad batch
ADVICE = "training cannot continue: lower optimizer.lr; the checkpoints are from before this step"


class FiniteChecks:
    """Sums that stop being finite where a step goes wrong: the loss, and one over each dense gradient.

    A sum is NaN or infinite if one of its terms is. (Finite terms can also add up beyond float32, 3e38; such a model is
    lost as well.) Table vectors need no check of their own: one that is not finite makes the logits non-finite or,
    where a ReLU hides it, the gradient of the layer that it enters (0 times infinity is NaN). Gradients of tables never
    exist as tensors: FBGEMM's backward updates rows directly.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = list(parameters.values())
        self.names = ("loss", *(f"gradient of {name}" for name in parameters))

    def __call__(self, loss: Tensor, *others: Tensor) -> Tensor:
        """Return [names + others] float32 on the device: the sums in the order of `names`, then the others.

        A gradient that was not computed counts as 0.
        """
        computed = [p.grad for p in self._parameters if p.grad is not None]
        if loss.is_cuda and computed:
            sums = iter(torch._foreach_norm(computed, 1))  # one kernel for all; on CPUs slower than sums
        else:
            # A sum shows a NaN or an infinity as well as the largest magnitude does, in a fraction of its time.
            sums = (gradient.sum(dtype=torch.float32) for gradient in computed)
        gradients = [
            loss.new_zeros((), dtype=torch.float32) if p.grad is None else next(sums) for p in self._parameters
        ]
        return torch.stack([loss.detach().float(), *gradients, *others])


def mean_loss(losses: NDArray[np.float32]) -> float | None:
    """Return the mean of the finite losses (steps may have been skipped); None if there is none."""
    finite = losses[np.isfinite(losses)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else None


class StepWindow:
    """Figures of the steps since the last report: those of the newest are on the device until `synchronise`."""

    def __init__(self, session: Session, timer: StepTimer, length: RunLength, state: RunState) -> None:
        self.lr = 0.0
        self.gradient_norm: Tensor | None = None  # norm at the last reported step
        self.first_counted_step = state.step + length.train.warmup_steps_excluded  # steps after this one count
        self._checks, self._session = FiniteChecks(session.dense_parameters()), session
        self._timer, self._length, self._state = timer, length, state
        self._values: list[Tensor] = []  # per step: its finite checks and its accuracy
        self._of_micro_batches: list[Tensor] = []  # per step: losses and hits of this process, [2, micro-batches]
        self._rows: list[int] = []  # per step: rows of its global batch
        # A resumed run may begin within a window, whose first steps were trained before.
        self._losses = [state.all_losses()[state.step - len(state.accuracies) :]]  # losses of the unreported steps
        self._seconds: list[NDArray[np.float32]] = []
        self._input_wait = 0.0
        self._phases = Measured()  # phases of all steps since the last report, counted or not
        self._skipped: list[int] = []  # the latest consecutive steps that were skipped

    def add(self, loss: Tensor, logits: Tensor, batch: Batch) -> None:
        """Note a step's results, without waiting for them."""
        labels = batch.labels
        if labels.ndim > 1:  # accuracy is that of the dataset's label, which comes first
            logits, labels = logits[:, 0], labels[:, 0]
        hits = (logits.detach() > 0) == (labels > 0.5)
        if self._session.micro_batches is not None:
            hits[batch.num_valid :] = 0
            losses = self._session.micro_batches.losses
            self._of_micro_batches.append(
                torch.stack([losses, hits.view(len(losses), -1).sum(dim=1, dtype=torch.float32)])
            )
            self._rows.append(batch.num_global)
        # Accuracies are averaged over ranks like losses, so each is weighted by its rank's share of the rows.
        if batch.share == 1:
            accuracy = hits.mean(dtype=torch.float32)
        else:
            accuracy = batch.share * hits[: batch.num_valid].sum(dtype=torch.float32) / max(batch.num_valid, 1)
        self._values.append(self._checks(loss, accuracy))

    def skip(self) -> None:
        """Note that this step makes no update. Raises UserError after too many in a row."""
        state = self._state
        self._skipped = [*self._skipped, state.step] if state.step - 1 in self._skipped[-1:] else [state.step]
        state.skipped += 1
        log.warning("%s: the loss is not finite: skipped, no parameter is updated", self._describe_step(state.step + 1))
        if len(self._skipped) > MAX_SKIPPED:
            raise UserError(f"step {state.step + 1}: {len(self._skipped)} steps in a row were skipped, {ADVICE}")

    def synchronise(self) -> None:
        """Bring losses and times to the host: the one place where the loop waits for the device.

        Raises UserError at the first value that is not finite; a skipped step's loss may be such a value.
        """
        state, runtime = self._state, self._session.runtime
        seconds, wait, phase_steps, phases = self._timer.take()
        # One copy from the device and one exchange bring the figures of all steps since the last call.
        values = runtime.mean(torch.stack(self._values).cpu().numpy())
        self._values.clear()
        checks, accuracies = values[:, :-1], values[:, -1]
        # A value that is not finite ends the run here, before it reaches the record.
        is_bad = ~np.isfinite(checks)
        if self._length.train.on_nan == "skip":
            is_bad[:, 0] = False
        if is_bad.any():
            # The first bad value belongs to the earliest step and, within it, to the loss rather than to a gradient.
            row, column = divmod(int(is_bad.argmax()), is_bad.shape[1])
            place = self._describe_step(state.step - len(checks) + row + 1)
            name = self._checks.names[column]
            raise UserError(f"{place}: first non-finite value: {name} ({checks[row, column]}); {ADVICE}")
        losses = np.ascontiguousarray(checks[:, 0])
        # The mean above is rounded by the number of processes, so with layout micro-batches are added instead.
        if self._of_micro_batches:
            losses, accuracies = self._sum_micro_batches()
        # A phase takes as long as on its slowest process.
        slowest = np.max(runtime.gather(np.array([phases.get(name, 0.0) for name in PHASES])), axis=0).tolist()
        timed = Measured(phase_steps=phase_steps, phases=dict(zip(PHASES, slowest, strict=True)) if phase_steps else {})
        self._phases.add(timed)
        state.losses.append(losses)
        # The loop also synchronises at first_counted_step, so one call's steps are all warm-up or all counted.
        if state.step - len(losses) >= self.first_counted_step:
            state.step_seconds.append(seconds)
            total = float(seconds.sum(dtype=np.float64))
            state.measured.add(Measured(total, total * runtime.world_size, wait))
            state.measured.add(timed)
        state.accuracies = np.concatenate([state.accuracies, accuracies])
        self._losses.append(losses)
        self._seconds.append(seconds)
        self._input_wait += wait

    def _sum_micro_batches(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the steps' losses and accuracies, added in the order of the micro-batches; a collective call."""
        # The last step of an epoch may have fewer micro-batches than the others.
        count = max(values.shape[1] for values in self._of_micro_batches)
        steps = [torch.nn.functional.pad(values, (0, count - values.shape[1])) for values in self._of_micro_batches]
        # Micro-batches come rank by rank in the order of the global batch, so the sum is the same on any layout.
        total = np.zeros((len(steps), 2))
        for values_of_rank in self._session.runtime.gather(torch.stack(steps).cpu().numpy()):
            for number in range(count):
                total += values_of_rank[:, :, number]
        rows = np.array(self._rows)
        self._of_micro_batches, self._rows = [], []
        return total[:, 0].astype(np.float32), (total[:, 1] / rows).astype(np.float32)

    def take(self) -> TrainEvent:
        """Return the event of the steps since the last call; call `synchronise` before it."""
        session, state, samples = self._session, self._state, self._session.samples
        losses, seconds = np.concatenate(self._losses), np.concatenate(self._seconds)
        loss, total = mean_loss(losses), float(seconds.sum(dtype=np.float64))
        has_clicks = task_of(session.manifest).has_clicks
        event = TrainEvent(
            event="train",
            step=state.step,
            epoch=state.epoch,
            steps=len(losses),
            loss=loss,
            accuracy=float(state.accuracies.mean(dtype=np.float64)) if has_clicks else None,
            logloss=loss if session.is_logloss else None,
            lr=self.lr,
            gradient_norm=None if self.gradient_norm is None else float(self.gradient_norm),
            # A resumed window has losses of steps that were trained before, but times of this launch's steps alone.
            samples_per_second=(samples(state.step) - samples(state.step - len(seconds))) / total,
            input_wait_fraction=self._input_wait / total,
            phase_seconds={name: spent / self._phases.phase_steps for name, spent in self._phases.phases.items()},
        )
        self.gradient_norm = None
        state.accuracies = np.empty(0, np.float32)
        self._losses, self._seconds, self._input_wait, self._phases = [], [], 0.0, Measured()
        return event

    def _describe_step(self, step: int) -> str:
        """Return the place of a step, counted from 1, for a message."""
        epoch, batch = divmod(step - 1, self._length.steps_per_epoch)
        return f"step {step} (epoch {epoch}, batch {batch} of {self._length.steps_per_epoch}, counted from 0)"


Ids = Callable[[KeyedJaggedTensor], KeyedJaggedTensor]


class DataLoader:
    """Provides a session's training batches in order; the bits are the same with and without the pipeline."""

    def __init__(self, session: Session, length: RunLength) -> None:
        self._session, self._length = session, length
        self._pipeline: SparseDistPipeline | None = None
        # For the record: the pipeline in use, which `auto` leaves open. `_pipeline` is the object itself, if any.
        self.pipeline = "none"
        device, world_size = session.runtime.device, session.runtime.world_size
        # On CPUs the pipeline shows no gain: a step takes from 0.76 to 1.38 times as long with it.
        is_auto, has_gpus = length.train.pipeline == "auto", device.type != "cpu" and world_size > 1
        if has_gpus if is_auto else length.train.pipeline == "sparse_dist":
            arch, self.pipeline = session.model.module.sparse_arch, "sparse_dist"
            self._pipeline = SparseDistPipeline(arch.collections, arch.table_ids, session.optimizer, device)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Return the rest of an epoch's batches, from its step `first` on."""
        train, split = self._length.train, self._session.split("train")
        source = split.train_batches(train.global_batch_size, train.seed, epoch, first)
        device = self._session.runtime.device
        if self._pipeline is None:
            return self._session.on_device(source)
        # The pipeline copies to the device by itself, so batches only have to be in page-locked memory.
        source = source if device.type == "cpu" else pinned_ahead(source, device)
        return self._pipeline.run(source, self._steps_to_evaluations(epoch * self._length.steps_per_epoch + first))

    def forward_done(self) -> None:
        """Let the pipeline, if there is one, go on: the model has computed the logits of the last batch."""
        if self._pipeline is not None:
            self._pipeline.forward_done()

    def close(self) -> None:
        """Stop the pipeline; a collective call. Take no more batches afterwards."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _steps_to_evaluations(self, step: int) -> Iterator[int]:
        """Yield the number of steps up to each evaluation.

        The pipeline must be empty there, because its batches would meet the evaluation's in the same model.
        """
        while step < self._length.total_steps:
            step, before = self._length.next_evaluation(step), step
            yield step - before


@dataclass
class _StagedBatch(Pipelineable):
    """A batch in the pipeline, and the ids that index its tables once it is on the device."""

    batch: Batch
    ids_of: Ids
    ids: KeyedJaggedTensor | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> "_StagedBatch":
        batch = self.batch.to(device, non_blocking)
        return _StagedBatch(batch, self.ids_of, self.ids_of(batch.sparse_features))

    def record_stream(self, stream: torch.Stream) -> None:
        self.batch.record_stream(stream)
        if self.ids is not None:
            self.ids.record_stream(stream)


class _Lookups(nn.Module):
    """The part of a model that TorchRec has to trace: its lookups, which all take a batch's ids."""

    def __init__(self, lookups: Iterable[nn.Module]) -> None:
        super().__init__()
        self.lookups = nn.ModuleList(lookups)

    def forward(self, staged: _StagedBatch) -> list[object]:
        return [lookup(staged.ids) for lookup in self.lookups]


class SparseDistPipeline(TrainPipelineSparseDist[_StagedBatch, None]):
    """TorchRec's sparse-dist pipeline: while a batch is computed, the next one's ids travel to the ranks of their rows.

    The pipeline holds three batches: one is computed, the ids of the second are exchanged, the third is copied to the
    device; on a GPU each has its own stream. The stages are TorchRec's (torchrec.distributed.train_pipeline).
    TorchRec's `progress` makes a whole step of them; here a loop makes the step, and takes batches as if there were no
    pipeline.
    """

    def __init__(
        self, lookups: Iterable[nn.Module], ids_of: Ids, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        """lookups: the model's sharded table collections; ids_of: turns a batch's features into the ids they take."""
        super().__init__(_Lookups(lookups), optimizer, device, execute_all_batches=True)
        self._ids_of = ids_of

    def run(self, source: Iterator[Batch], pieces: Iterable[int | None]) -> Iterator[Batch]:
        """Yield the batches of `source` on the device; call `forward_done` before asking for the next.

        pieces: numbers of batches (None: all). The pipeline runs empty after each piece, and the model is then free for
        other use.
        """
        for size in pieces:
            piece = (_StagedBatch(batch, self._ids_of) for batch in islice(source, size))
            # The end of the piece before has detached the pipeline, so that the model could evaluate.
            self.attach()
            self.fill_pipeline(piece)
            if not self.batches:
                return
            assert len(self._pipelined_modules) == len(self._model.lookups), "TorchRec left a lookup out"
            while self.batches:
                self._wait_for_batch()
                # The numbers of the next batch's ids are exchanged while the caller computes this one's logits.
                if len(self.batches) > 1:
                    self.start_sparse_data_dist(self.batches[1], self.contexts[1])
                self.enqueue_batch(piece)
                yield self.batches[0].batch

    def forward_done(self) -> None:
        """Send the next batch's ids, whose numbers all ranks know by now, before this one's backward."""
        if len(self.batches) > 1:
            self.wait_sparse_data_dist(self.contexts[1])
        self.dequeue_batch()
        if not self.batches:
            self.detach()

    def close(self) -> None:
        """Wait for the exchanges of batches that will not be computed; a collective call."""
        # Only the next batch's ids have been sent; those of the batch after it wait for their turn.
        for context in list(self.contexts)[:1]:
            for request in context.input_dist_tensors_requests.values():
                request.wait()
        if self.batches:
            self.detach()
        self.reset()
