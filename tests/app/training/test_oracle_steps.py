"""Steps of drawn models, of the field's models and of an epoch's last batch, against naive programs."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from app.config.data import DataConfig
from app.config.kinds import OptimizerName, ScheduleName
from app.config.model import Interaction
from app.config.train import TrainConfig, samples_of, steps_within
from app.data.split import SplitReader
from app.model.embeddings import Embedding
from app.runtime.platform import Runtime
from app.training import session
from app.training.state import run_length
from data_prep.dataset.format import load_manifest, shard_path
from extensions.special_tables import QROperation, TableKind
from extensions.special_tables.arch import SpecialEmbedding
from tests.app import loops
from tests.app.conftest import SMALL, built
from tests.app.datasets import NUM_EMBEDDINGS, RAGGED, RAGGED_EMBEDDINGS, write_dataset
from tests.app.group import run_group
from tests.app.run_files import events, losses, summary
from tests.covering import stable_choice
from tests.once import made_once
from tests.oracles.dlrm import INTERACTIONS, Feature, OracleDLRM

# The field's models in float64, from plain parts of torch, as FuxiCTR 2.3 defines them. Shapes: B samples, N dense
# features, F sparse ones, D width of vectors.
EPSILON, MOMENTUM = 1e-5, 0.1


def mask(seed: int, step: int, layer: int, first_row: int, rows: int, width: int, rate: float) -> NDArray[np.bool_]:
    """Which values a dropout keeps, value by value: lowbias32 of a row's and a column's key, without its last step."""

    def mixed(number: int) -> int:
        number = ((number ^ (number >> 16)) * 0x7FEB352D) % 2**32
        return int(((number ^ (number >> 15)) * 0x846CA68B) % 2**32)

    first, second = (int(word) for word in np.random.SeedSequence([seed, step, layer]).generate_state(2))
    row_keys = [mixed(mixed((first_row + row + first) % 2**32) ^ second) for row in range(rows)]
    columns = [mixed(column) for column in range(width)]
    numbers = [[mixed((row + column) % 2**32) for column in columns] for row in row_keys]
    signed = np.array(numbers, np.uint32).view(np.int32).astype(np.int64)
    return signed >= round(rate * 2**32) - 2**31


@dataclass
class Perceptron:
    """Layers by name in `parameters`; hidden ones with batch norm and dropout: FuxiCTR's MLP_Block."""

    name: str
    num_layers: int
    num_hidden: int
    batch_norm: bool
    rates: Sequence[float]
    final_relu: bool


@dataclass
class Model:
    """A model whose parameters have a name, trained by Adam with L2 inside it, after clipping all gradients together.

    tables: names of the F tables. statistics: running means and variances of batch norms, by name.
    """

    parameters: dict[str, Tensor]
    statistics: dict[str, Tensor]
    tables: list[str]
    interaction: str
    dense_arch: Perceptron | None
    over_arch: Perceptron | None
    deep_arch: Perceptron | None = None
    num_cross: int = 0
    seed: int = 0
    decays: dict[str, float] = field(default_factory=dict)  # by parameter
    max_norm: float | None = None
    lr: float = 1e-3
    eps: float = 1e-8
    micro_batch: int | None = None  # rows that share statistics of batch norm; None: all of a batch

    def __post_init__(self) -> None:
        self.parameters = {name: value.double().requires_grad_() for name, value in self.parameters.items()}
        self.statistics = {name: value.double() for name, value in self.statistics.items()}
        self.optimizer = torch.optim.Adam(list(self.parameters.values()), lr=self.lr, eps=self.eps)

    def logits(self, dense: Tensor, ids: Tensor, step: int | None) -> Tensor:
        """[B]; step: of training, None for evaluation. dense [B, N] and ids [B, F]."""
        self._dropouts = 0
        sparse = torch.stack([self.parameters[name][ids[:, number]] for number, name in enumerate(self.tables)], dim=1)
        vectors, hidden = sparse, None
        if self.dense_arch is not None:
            hidden = self._perceptron(self.dense_arch, dense, step)
            vectors = torch.cat([hidden.unsqueeze(1), sparse], dim=1)
        elif "dense_arch.weight" in self.parameters:
            vectors = torch.cat([dense.unsqueeze(2) * self.parameters["dense_arch.weight"], sparse], dim=1)
        flat = vectors.flatten(1)
        if self.interaction == "sum":
            return flat.sum(1) + self.parameters["over_arch.bias"]
        if self.interaction == "dot":
            pairs = combinations(vectors.unbind(1), 2)
            outputs = torch.stack([(one * other).sum(1) for one, other in pairs], dim=1)
            outputs = outputs if hidden is None else torch.cat([hidden, outputs], dim=1)
        elif self.interaction == "cat":
            outputs = flat
        else:
            outputs = flat
            for layer in range(self.num_cross):
                name = f"interaction.crossnet.layers.{layer}"
                weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
                outputs = outputs + flat * (outputs @ weight.T + bias)
            if self.deep_arch is not None:
                outputs = torch.cat([outputs, self._perceptron(self.deep_arch, flat, step)], dim=1)
        assert self.over_arch is not None
        return self._perceptron(self.over_arch, outputs, step).squeeze(1)

    def _perceptron(self, stack: Perceptron, x: Tensor, step: int | None) -> Tensor:
        for layer in range(stack.num_layers):
            layer_name = f"{stack.name}.{2 * layer}"
            x = x @ self.parameters[f"{layer_name}.weight"].T + self.parameters[f"{layer_name}.bias"]
            is_hidden = layer < stack.num_hidden
            if is_hidden and stack.batch_norm:
                x = self._batch_norm(f"{stack.name}.{2 * layer + 1}.0", x, step)
            if stack.final_relu or layer < stack.num_layers - 1:
                x = functional.relu(x)
            rate = stack.rates[layer] if is_hidden else 0.0
            if rate and step is not None:
                keep_mask = mask(self.seed, step, self._dropouts, 0, x.shape[0], x.shape[1], rate)
                x = x * torch.from_numpy(keep_mask) / (1 - rate)
            self._dropouts += rate > 0
        return x

    def _batch_norm(self, name: str, x: Tensor, step: int | None) -> Tensor:
        mean, var = self.statistics[f"{name}.running_mean"], self.statistics[f"{name}.running_var"]
        if step is not None:
            parts = x.split(self.micro_batch or len(x))
            with torch.no_grad():
                mean.mul_(1 - MOMENTUM).add_(x.mean(0), alpha=MOMENTUM)
                own_var = sum(len(part) / len(x) * part.var(0) for part in parts)
                var.mul_(1 - MOMENTUM).add_(own_var, alpha=MOMENTUM)
            mean = torch.cat([part.mean(0).expand_as(part) for part in parts])
            var = torch.cat([part.var(0, correction=0).expand_as(part) for part in parts])
        return (x - mean) / (var + EPSILON).sqrt() * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def step(self, dense: Tensor, ids: Tensor, labels: Tensor, number: int) -> float:
        """One update; returns the loss without L2."""
        logits = self.logits(dense.double(), ids, number)
        loss = functional.binary_cross_entropy_with_logits(logits, labels.double())
        penalty = sum(self.decays.get(name, 0.0) / 2 * value.square().sum() for name, value in self.parameters.items())
        self.optimizer.zero_grad()
        (loss + penalty).backward()
        if self.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.max_norm)
        self.optimizer.step()
        return loss.item()


def rates(
    name: str, base: float, steps: int, warmup: int = 0, start: int = 0, decay: int = 0, end: float = 0.0
) -> list[float]:
    """The rate of each of `steps` steps.

    warmup_poly: facebookresearch/dlrm's LRPolicyScheduler, whose count begins at 1 and which keeps its last rate
    between warm-up and decay, and after it. cosine: linear warm-up, then half a cosine from `start` on. warmup:
    MLPerf's DLRMv4, from 0.
    """
    step_rates, last = [], base
    for step in range(steps):
        rate = base
        if name == "warmup":
            rate = base if step >= warmup else base * step / warmup
        elif name == "cosine":
            if step < warmup:
                rate = base * (step + 1) / warmup
            elif step > start:
                angle = math.pi * min(step - start, decay) / decay
                rate = base * end + base * (1 - end) / 2 * (1 + math.cos(angle))
        elif name == "warmup_poly":
            count = step + 1
            if count < warmup:
                rate = last = base * (1 - (warmup - count) / warmup)
            elif start <= count < start + decay:
                rate = last = max(1e-7, base * ((decay - (count - start)) / decay) ** 2)
            elif decay:
                rate = last
        step_rates.append(rate)
    return step_rates


DRAWN_STEPS, DRAWN_BATCH = 6, 16
BY_STEP = [name for name in ScheduleName if not name.schedule.by_metric]
# Overrides of an interaction that are not its name alone.
VARIANTS = {
    "dot_itself": ["model.interaction=dot", "model.interaction_itself=true"],
    "mixed_pairs": ["model.interaction=scalar_pairs", "model.mixes_samples=true"],
}
DRAWN_CASES = [(interaction, number) for interaction in INTERACTIONS for number in range(3)]
FAST = [(interaction, 0) for interaction in ("dot", "dot_itself", "dcn", "projection")]


class Drawn(NamedTuple):
    """A drawn model and its training."""

    optimizer: OptimizerName
    schedule: ScheduleName
    overrides: list[str]


def draw(interaction: str, number: int, layout: bool = False) -> Drawn:
    """All that a case decides, but for a case of another name. layout: what train.deterministic=layout allows.

    Optimizers that torch updates whole tables by have none that is looked up id by id.
    """
    case: tuple[object, ...] = (interaction, number, *(["layout"] if layout else []))
    rng = np.random.default_rng(list(repr(case).encode()))
    optimizer = OptimizerName(stable_choice([each.value for each in OptimizerName], "optimizer", *case))
    schedule = ScheduleName(stable_choice([each.value for each in BY_STEP], "schedule", *case))
    overrides = [*VARIANTS.get(interaction, [f"model.interaction={interaction}"]), f"optimizer={optimizer.value}"]
    overrides += [f"optimizer.lr={0.005 if 'beta1' in optimizer.algorithm.settings else 0.05}"]
    overrides += [f"optimizer.sparse_lr={rng.choice([0.02, 0.004])}"]
    overrides += [] if optimizer is OptimizerName.sgd else ["optimizer.eps=1e-3"]
    overrides += ["train.deterministic=layout", "train.micro_batch_size=5"] * layout
    overrides += ["optimizer.max_grad_norm=0.05"] * int(rng.integers(2))
    lengths = {"warmup_steps": rng.integers(1, 4), "decay_start_step": rng.integers(3, 5), "decay_steps": 4}
    keys = {"constant": [], "warmup": ["warmup_steps"]}.get(schedule.value, list(lengths))
    overrides += [f"schedule.name={schedule.value}", *(f"schedule.{key}={lengths[key]}" for key in keys)]
    overrides += ["schedule.end_factor=0.2"] * (schedule is ScheduleName.cosine)
    for feature in RAGGED_EMBEDDINGS:
        by_id = (optimizer.algorithm.fused_on_cpu or feature not in RAGGED) and not layout
        # Rows are summed, averaged or weighted, which stands for a third pooling in the names of cases.
        pooling = rng.choice(["sum", "mean", *(["weighted"] if by_id else [])])
        kinds = [each for each in get_args(TableKind) if not (layout and each == "mixed_dimension")]
        kind = rng.choice(kinds)
        settings = ["row_weights: learned" if pooling == "weighted" else f"pooling: {pooling}", f"kind: {kind}"]
        if kind == "qr":
            operations = [each for each in get_args(QROperation) if by_id or each != "mult"]
            settings += [f"qr_operation: {rng.choice(operations)}", "qr_collisions: 3"]
        settings += ["dim: 4"] * (kind == "mixed_dimension")
        overrides.append(f"+model.tables.overrides.{feature}={{{', '.join(settings)}}}")
    return Drawn(optimizer, schedule, overrides)


def feature_of(embedding: Embedding, parameters: dict[str, Any]) -> Feature:
    """Weighted bags are sums of w_i e_i, so that there pooled_mult is the product of each id's rows."""
    names = {part: f"sparse_arch.{part}.{embedding.key}.weight" for part in ("row_weights", "projections")}
    weighted, operation = False, ""
    if isinstance(embedding, SpecialEmbedding):
        weighted, operation = embedding.row_weights is not None, embedding.operation or ""
    return Feature(
        [table.name for table in embedding.tables],
        "mult" if weighted and "mult" in operation else operation or "plain",
        "weighted" if weighted else "mean" if embedding.tables[0].mean else "sum",
        names["row_weights"] if names["row_weights"] in parameters else None,
        names["projections"] if names["projections"] in parameters else None,
    )


@pytest.mark.parametrize(
    ("interaction", "number"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in DRAWN_CASES if case not in FAST)],
)
def test_drawn_models_train_as_the_naive_program(interaction: str, number: int, runtime: Runtime, ragged: Path) -> None:
    train_beside_the_oracle(draw(interaction, number), interaction, runtime, ragged)


@pytest.mark.medium
@pytest.mark.parametrize("interaction", sorted(set(INTERACTIONS) - {"mixed_pairs"}))
def test_micro_batches_train_as_the_naive_program(interaction: str, runtime: Runtime, ragged: Path) -> None:
    """train.deterministic=layout, with micro-batches of 5 of 16 rows: the last one has one."""
    train_beside_the_oracle(draw(interaction, 0, layout=True), interaction, runtime, ragged)


def train_beside_the_oracle(case: Drawn, interaction: str, runtime: Runtime, ragged: Path) -> None:
    """Train a few steps; compare each loss and, at the end, all parameters."""
    print(*case.overrides)
    overrides = [*case.overrides, f"train.global_batch_size={DRAWN_BATCH}"]
    overrides += ["model.embedding_dim=8", "model.dense_arch=[6,8]", "model.over_arch=[5,1]"]
    this = built(runtime, ragged, *overrides)
    parameters = {name: torch.from_numpy(np.array(values)) for name, values in this.parameters()}
    embeddings = this.model.module.sparse_arch.embeddings
    features = {one.features[0]: feature_of(one, parameters) for one in embeddings}
    schedule, optimizer = this.config.schedule, this.config.optimizer
    lengths = (DRAWN_STEPS, schedule.warmup_steps, schedule.decay_start_step, schedule.decay_steps, schedule.end_factor)
    lr, table_lr = (rates(schedule.name.value, base, *lengths) for base in (optimizer.lr, optimizer.table_lr))
    settings = (optimizer.eps or 0.0, (optimizer.beta1 or 0.9, optimizer.beta2 or 0.999), optimizer.max_grad_norm)
    oracle = OracleDLRM(parameters, features, interaction, lr, table_lr, case.optimizer.value, *settings)
    for step, batch in zip(range(DRAWN_STEPS), this.split("train").train_batches(DRAWN_BATCH, 3, 0, 0), strict=False):
        loss = loops.step(this, batch, step)
        bags = {name: jagged.to_dense() for name, jagged in batch.sparse_features.to_dict().items()}
        rows = slice(batch.num_valid)  # micro-batches are padded
        bags = {name: [ids.long() for ids in of_feature[rows]] for name, of_feature in bags.items()}
        oracle.step(batch.dense_features[rows], bags, batch.labels[rows])
        assert loss == pytest.approx(oracle.losses[-1], rel=2e-5), f"step {step}"
    for name, values in this.parameters():
        np.testing.assert_allclose(values, oracle.parameters[name].detach().numpy(), atol=2e-5, err_msg=name)


def test_every_part_is_drawn() -> None:
    cases = [draw(*case) for case in DRAWN_CASES]
    assert {case.optimizer for case in cases} == set(OptimizerName)
    assert {case.schedule for case in cases} == set(BY_STEP)
    text = " ".join(override for case in cases for override in case.overrides)
    forms = [*get_args(TableKind), *get_args(QROperation)]
    for word in (*forms, "mean", "row_weights", "max_grad_norm"):
        assert word in text
    exclusions = {"sum"}  # SHAPES, below
    assert {*get_args(Interaction)} - exclusions == set(INTERACTIONS) - set(VARIANTS)


FIELD_BATCH, FIELD_STEPS, SEED = 48, 10, 5
EPS = 1e-4  # with less, Adam makes steps of the rounding in gradients that are 0, those of biases before a batch norm
VECTORS = ["model.numeric=vectors", "model.dense_arch=[]"]
CROSS = ["model.interaction=dcn", "model.dcn_full_rank=true", *VECTORS, "model.over_arch=[1]"]
SHAPES = {  # overrides; FuxiCTR's name for it
    "dlrm": ["model.interaction=dot", "model.dense_arch=[12,9,10]", "model.over_arch=[16,8,1]"],
    "dlrm_cat": ["model.interaction=cat", "model.dense_arch=[12,10]", "model.over_arch=[16,1]"],
    "dlrm_vectors": ["model.interaction=dot", *VECTORS, "model.over_arch=[16,1]"],
    "dcnv2": [*CROSS, "model.dcn_num_layers=2", "model.deep_arch=[14,12]"],
    "crossnetv2": CROSS,
    "dnn": ["model.interaction=cat", *VECTORS, "model.over_arch=[16,12,1]"],
    "lr": ["model.interaction=sum", *VECTORS, "model.over_arch=[]", "model.embedding_dim=1"],
}


class Settings(NamedTuple):  # what a case adds to a shape
    batch_norm: bool = False
    dropout: float = 0.0
    l2: float = 0.0
    max_norm: float | None = None
    micro_batch: int | None = None

    def overrides(self) -> list[str]:
        keys = [f"model.batch_norm={str(self.batch_norm).lower()}", f"optimizer.sparse_weight_decay={self.l2}"]
        keys += [f"model.dropout={self.dropout}"] if self.dropout else []
        if self.micro_batch is not None:
            keys += ["train.deterministic=layout", f"train.micro_batch_size={self.micro_batch}"]
        if self.max_norm is not None:
            keys += [f"optimizer.max_grad_norm={self.max_norm}", "optimizer.clip_tables=true"]
        return keys


def naive(shape: str, settings: Settings, this: session.Session) -> Model:
    model, values = this.config.model, {name: torch.from_numpy(np.array(array)) for name, array in this.parameters()}
    statistics = {name: values.pop(name) for name in [*values] if "running_" in name}
    tables = [table.name for table in this.model.module.sparse_arch.tables]

    def stack(name: str, widths: list[int] | None, final_relu: bool, rate: float) -> Perceptron | None:
        if not widths:
            return None
        num_hidden = len(widths) if name == "interaction.deep_arch" else len(widths) - 1
        return Perceptron(name, len(widths), num_hidden, settings.batch_norm, [rate] * len(widths), final_relu)

    decayed = [*tables, "dense_arch.weight" if "dense_arch.weight" in values else "", "over_arch.bias"]
    dense = stack("dense_arch", model.dense_arch, True, 0.0)
    over = stack("over_arch", model.over_arch, False, settings.dropout)
    deep = stack("interaction.deep_arch", model.deep_arch, True, settings.dropout)
    of_parts = partial(Model, values, statistics, tables, model.interaction, dense, over, deep)
    decay, layers = dict.fromkeys(decayed, settings.l2), model.dcn_num_layers or 3
    return of_parts(layers, SEED, decay, settings.max_norm, 0.01, EPS, settings.micro_batch)


EVERYTHING = Settings(batch_norm=True, dropout=0.3, l2=0.05, max_norm=0.5)
EVERYTHING_IN_PARTS = EVERYTHING._replace(micro_batch=10)
FIELD_CASES: list[Any] = [("dlrm", EVERYTHING), ("dcnv2", EVERYTHING), ("lr", Settings(l2=0.02)), ("dlrm", Settings())]
FIELD_CASES += [("dcnv2", EVERYTHING_IN_PARTS)]
LINEAR = ("lr", "crossnetv2")  # have no layers to normalise or to drop values of
FIELD_CASES += [
    pytest.param(shape, settings, marks=pytest.mark.slow)
    for shape in SHAPES
    for settings in (EVERYTHING, EVERYTHING_IN_PARTS, Settings(l2=0.1, max_norm=0.1))
    if (shape in LINEAR) == (settings.dropout == 0) and (shape, settings) not in FIELD_CASES
]


@pytest.mark.parametrize(("shape", "settings"), FIELD_CASES)
def test_steps_are_those_of_the_naive_program(shape: str, settings: Settings, runtime: Runtime, dataset: Path) -> None:
    keys = ["optimizer=adam", "optimizer.lr=0.01", f"optimizer.eps={EPS}", "model.embedding_dim=10"]
    keys += ["model.dense_init=xavier_normal", f"train.global_batch_size={FIELD_BATCH}", f"train.seed={SEED}"]
    this = built(runtime, dataset, *keys, *SHAPES[shape], *settings.overrides())
    oracle = naive(shape, settings, this)
    batches = list(zip(range(FIELD_STEPS), this.split("train").train_batches(FIELD_BATCH, 3, 0, 0), strict=False))
    for step, batch in batches:
        loss = loops.step(this, batch, step)
        rows = slice(batch.num_valid)
        expected = oracle.step(batch.dense_features[rows], ids_of(batch)[rows], batch.labels[rows], step)
        assert loss == pytest.approx(expected, rel=1e-5), f"step {step}"
    for name, values in this.parameters():
        other = oracle.statistics[name] if "running_" in name else oracle.parameters[name].detach()
        atol = 1e-4 if settings.batch_norm else 2e-5  # gradients of biases before a batch norm are rounding alone
        np.testing.assert_allclose(values, other.numpy(), atol=atol, err_msg=name)
    batch = batches[0][1]
    this.model.eval()
    logits = this.forward(batch).detach()
    this.model.train()
    expected_logits = oracle.logits(batch.dense_features.double(), ids_of(batch), None).detach()
    np.testing.assert_allclose(logits.numpy(), expected_logits.numpy(), atol=1e-4)
    assert bool(oracle.statistics) is settings.batch_norm


def ids_of(batch: Any) -> Tensor:
    return batch.sparse_features.values().view(len(batch.sparse_features.keys()), -1).T.long()


BATCH, BLOCK, WINDOW = 64, 40, 2
ROWS = {"odd": 4 * BATCH + 45, "one": 2 * BATCH + 1, "none": 2 * BATCH, "few": 13, "almost": 3 * BATCH + 63}
EPOCHS = 2
CONFIG = DataConfig(shuffle_block_rows=BLOCK, shuffle_window_blocks=WINDOW)
LAST = ["train.drop_last=false", f"train.epochs={EPOCHS}", f"data.shuffle_block_rows={BLOCK}"]
LAST += [f"data.shuffle_window_blocks={WINDOW}", "record.tensorboard=false"]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    def make(directory: Path) -> None:
        for name, rows in ROWS.items():
            write_dataset(directory / name, {"train": rows, "val": 60, "test": 0}, shard_rows=100)

    directory = made_once(tmp_path_factory, "last_batches", make)
    return {name: directory / name for name in ROWS}


def plain_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Blocks in a drawn order, and rows in a drawn order inside each window of consecutive ones."""
    starts = np.arange(0, rows, BLOCK)
    np.random.default_rng([seed, epoch, 0]).shuffle(starts)
    order = []
    for number in range(-(-len(starts) // WINDOW)):
        blocks = starts[number * WINDOW : (number + 1) * WINDOW]
        of_window = np.concatenate([np.arange(start, min(start + BLOCK, rows)) for start in blocks])
        places = np.arange(len(of_window))
        np.random.default_rng([seed, epoch, 1 + number]).shuffle(places)
        order.append(of_window[places])
    return np.concatenate(order)


def plain_batches(rows: int, seed: int, epoch: int) -> list[list[int]]:
    order = plain_order(rows, seed, epoch).tolist()
    return [order[start : start + BATCH] for start in range(0, rows, BATCH)]


def read_batches(root: Path, rank: int = 0, processes: int = 1, first: int = 0) -> list[list[int]]:
    """The rows of each of an epoch's batches, known from dense feature 0, without what is padded."""
    split = SplitReader(root, load_manifest(root), "train", CONFIG, rank, processes, drop_last=False)
    batches = []
    for batch in split.train_batches(BATCH, 3, 1, first):
        numbers = np.rint(batch.dense_features[:, 0].numpy() * split.rows).astype(int).tolist()
        assert len(batch.labels) == len(numbers)
        assert len(set(numbers)) >= min(batch.num_valid, 1)
        batches.append(numbers[: batch.num_valid])
    return batches


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("name", ROWS)
def test_batches_are_numpys(name: str, processes: int, roots: dict[str, Path]) -> None:
    parts = [read_batches(roots[name], rank, processes) for rank in range(processes)]
    together = [list(itertools.chain(*batch)) for batch in zip(*parts, strict=True)]
    assert together == plain_batches(ROWS[name], 3, 1)


def arrays_of(root: Path) -> list[NDArray[np.generic]]:
    """Labels, dense and sparse features of the train split."""
    shards = load_manifest(root).splits["train"].shards
    return [
        np.concatenate([np.load(shard_path(root, "train", shard.name, kind)) for shard in shards])
        for kind in ("labels", "dense", "sparse")
    ]


def plain_losses(root: Path, runtime: Runtime, overrides: list[str]) -> list[float]:
    """Of the plain model in float64, from the same initial values, over all epochs."""
    this = built(runtime, root, *overrides)
    config = this.config
    parameters = {name: torch.from_numpy(np.array(values)) for name, values in this.parameters()}
    features = {one.features[0]: Feature([one.tables[0].name]) for one in this.model.module.sparse_arch.embeddings}
    rows = load_manifest(root).splits["train"].rows
    steps, optimizer = EPOCHS * -(-rows // BATCH), config.optimizer
    settings = (optimizer.name.value, optimizer.eps or 0.0, (optimizer.beta1 or 0.9, optimizer.beta2 or 0.999))
    oracle = OracleDLRM(parameters, features, "dot", [optimizer.lr] * steps, [optimizer.table_lr] * steps, *settings)
    labels, dense, sparse = (torch.from_numpy(array) for array in arrays_of(root))
    for epoch in range(EPOCHS):
        for batch in plain_batches(rows, config.train.seed, epoch):
            bags = {name: [ids[i : i + 1].long() for ids in sparse[batch]] for i, name in enumerate(NUM_EMBEDDINGS)}
            oracle.step(dense[batch], bags, labels[batch, 0].float())
    return oracle.losses


def model(optimizer: str) -> list[str]:
    """Overrides of a model that the plain one repeats."""
    overrides = [*SMALL, *LAST, f"optimizer={optimizer}", "optimizer.lr=0.01", "optimizer.sparse_lr=0.02"]
    overrides += ["model.interaction=dot", "train.eval_every_fraction=1", "train.eval_every_steps=null"]
    return overrides if optimizer == "sgd" else [*overrides, "optimizer.eps=1e-3"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    ("name", "optimizer", "processes"), [("one", "adam", 2), ("few", "rowwise_adagrad", 2), ("odd", "sgd", 4)]
)
def test_losses_are_the_plain_models(
    name: str, optimizer: str, processes: int, runtime: Runtime, roots: dict[str, Path], tmp_path: Path
) -> None:
    overrides = [*model(optimizer), "sharding.types=row_wise"]
    run = [*overrides, "run.name=x", f"run.dir={tmp_path}/run", f"data.path={roots[name]}"]
    run_group([run], processes, tmp_path / "results.json")
    expected = plain_losses(roots[name], runtime, overrides)
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, rtol=3e-5)
    epoch_steps = -(-ROWS[name] // BATCH)
    assert [event["step"] for event in events(tmp_path / "run", "eval")] == [epoch_steps, 2 * epoch_steps]
    figures = summary(tmp_path / "run")
    assert (figures["steps"], figures["samples"]) == (2 * epoch_steps, 2 * ROWS[name])


@pytest.mark.parametrize("drop_last", [True, False])
def test_samples_of_steps(drop_last: bool, roots: dict[str, Path]) -> None:
    rows, train = ROWS["odd"], TrainConfig(global_batch_size=BATCH, drop_last=drop_last, epochs=3)
    sizes = [BATCH] * 4 + ([] if drop_last else [45])
    sample_counts = [0, *itertools.accumulate(sizes * 3)]
    assert [samples_of(train, rows, step) for step in range(len(sample_counts))] == sample_counts
    for samples in range(0, sample_counts[-1] + 1, 7):
        expected = max(step for step, count in enumerate(sample_counts) if count <= samples)
        assert steps_within(train, rows, samples) == expected
    split = SplitReader(roots["odd"], load_manifest(roots["odd"]), "train", CONFIG, 0, 1, drop_last)
    assert run_length(train, split, 1).total_steps == 3 * len(sizes)
