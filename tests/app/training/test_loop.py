"""What is reported of steps and tables, against NumPy; what the checks of a step's values find."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from app.config.model import Interaction, ModelConfig, Storage
from app.config.train import TrainConfig
from app.data.batch import Batch
from app.model import embeddings
from app.model.dlrm import DLRM
from app.model.embeddings import TableInitRange, TableSpec, initial_rows
from app.runtime.platform import Runtime
from app.training import session as table_figures
from app.training.session import MAX_BLOCKS, FiniteChecks, Session, TableMeter
from tests.app import loops
from tests.app.conftest import Train
from tests.app.model.given_vectors import GivenVectors
from tests.app.run_files import events, summary


class OneLayer:
    """In place of a session: one linear layer, its learning rate other at each step."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.computed: list[tuple[np.ndarray, np.ndarray]] = []

    def begin_step(self, step: int) -> float:
        return 0.5 + step

    def forward(self, batch: Batch) -> torch.Tensor:
        logits = self.model(batch.dense_features).squeeze(1)
        self.computed.append((logits.detach().double().numpy(), batch.labels.numpy()))
        return logits

    def loss_of(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)

    def gradient_norm(self) -> torch.Tensor:
        return torch.nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])

    def dense_parameters(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    predictor = SimpleNamespace(micro_batches=None)


def test_losses_and_accuracies_of_each_step(runtime: Runtime) -> None:
    torch.manual_seed(0)
    session = OneLayer(runtime)
    batches = (Batch(torch.randn(32, 3), None, torch.randint(2, (32,)).float(), 32) for _ in range(7))
    config = TrainConfig(global_batch_size=32, log_every_steps=3, warmup_steps_excluded=0)
    _, reported = loops.train(session, batches, 7, config)
    assert [len(steps.losses) for steps in reported] == [3, 3, 1]
    assert [steps.lr for steps in reported] == [2.5, 5.5, 6.5]
    losses = [np.mean(np.log1p(np.exp(z)) - y * z) for z, y in session.computed]
    accuracies = [np.mean((z > 0) == (y == 1)) for z, y in session.computed]
    np.testing.assert_allclose(np.concatenate([steps.losses for steps in reported]), losses, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate([steps.accuracies for steps in reported]), accuracies, rtol=1e-6)
    assert all(0 <= steps.input_wait <= steps.seconds.sum() for steps in reported)


BATCH, DIM, NUM_SPARSE = 7, 4, 3


@pytest.mark.parametrize("interaction", list(Interaction))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_vector_that_is_not_finite_shows_in_the_loss_or_a_gradient(interaction: Interaction, value: float) -> None:
    """Wherever it is, whatever a ReLU hides of it."""
    config = ModelConfig(interaction, embedding_dim=DIM, dense_arch=[6, DIM], over_arch=[5, 1])
    for seed in range(20):
        torch.manual_seed(seed)
        model = DLRM(config, 2, NUM_SPARSE, GivenVectors())
        checks = FiniteChecks(dict(model.named_parameters()))
        vectors = torch.randn(BATCH, NUM_SPARSE, DIM)
        for spoiled in (False, True):
            if spoiled:
                vectors[seed % BATCH, seed % NUM_SPARSE, seed % DIM] = value
            model.zero_grad()
            logits = model(torch.randn(BATCH, 2), vectors)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, (torch.rand(BATCH) < 0.5).float())
            loss.backward()
            assert bool(torch.isfinite(checks(loss)).all()) is not spoiled


def table(rows: int, dim: int = 4, storage: Storage = Storage.fp32) -> TableSpec:
    return TableSpec("t_a", ("a",), rows, dim, TableInitRange(-0.5, 0.5), storage, False, False)


@pytest.mark.parametrize("storage", [Storage.fp32, Storage.fp16])
@pytest.mark.parametrize("counts", [True, False])
def test_figures_are_those_of_the_whole_table(storage: Storage, counts: bool) -> None:
    rng = np.random.default_rng(0)
    spec = table(1000, storage=storage)
    values = initial_rows(7, spec, 0, 1000)
    if storage is Storage.fp16:
        values = values.astype(np.float16).astype(np.float32)
    values[rng.choice(1000, 123, replace=False), rng.integers(0, 4, 123)] += 1
    meter = TableMeter([spec], 7, counts)
    passed = list(meter.watch([("t_a", values[:300]), ("t_a", values[300:]), ("dense", values[:2])]))
    assert np.array_equal(np.concatenate(passed), np.concatenate([values, values[:2]]))
    figures = meter.figures()["t_a"]
    norms = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    assert (figures.rows, figures.rows_touched) == (1000, 123 if counts else None)
    assert figures.mean_norm == pytest.approx(norms.mean(), rel=1e-6)
    assert figures.largest_norm == pytest.approx(norms.max(), rel=1e-6)


def test_of_a_large_table_blocks_all_over_it_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (embeddings, table_figures):
        monkeypatch.setattr(module, "INIT_BLOCK_ROWS", 10)
    spec = table(4003)
    values = initial_rows(1, spec, 0, 4003)
    values[::2] += 1
    meter = TableMeter([spec], 1, True)
    list(meter.watch([("t_a", values[start : start + 37]) for start in range(0, 4003, 37)]))
    figures = meter.figures()["t_a"]
    assert (figures.rows, figures.rows_touched) == (10 * MAX_BLOCKS, 5 * MAX_BLOCKS)


def test_an_epoch_touches_the_ids_of_its_rows(train: Train, dataset: Path) -> None:
    train("train.drop_last=false")
    ids = np.concatenate([np.load(path) for path in sorted((dataset / "train").glob("*.sparse.npy"))])
    expected = {f"t_cat_{place}": len(np.unique(ids[:, place])) for place in range(ids.shape[1])}
    figures = summary(Path("runs/x"))["tables"]
    assert {name: figures[name]["rows_touched"] for name in figures} == expected
    train("run.name=b", "optimizer.sparse_weight_decay=0.1", "train.max_steps=2")
    assert {entry["rows_touched"] for entry in summary(Path("runs/b"))["tables"].values()} == {None}


def test_the_gradients_norm_is_that_of_a_step_of_sgd(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the learning rate times the gradient."""
    before: list[torch.Tensor] = []
    begin = Session.begin_step

    def begun(self: Session, step: int) -> float:
        values = [each.detach().double().flatten() for each in self.dense_parameters().values()]
        before.append(torch.cat(values).clone())
        return begin(self, step)

    monkeypatch.setattr(Session, "begin_step", begun)
    train("optimizer=sgd", "optimizer.lr=0.5", "train.log_every_steps=2", "train.max_steps=7")
    norms = {event["step"]: event["gradient_norm"] for event in events(Path("runs/x"), "train")}
    assert list(norms) == [2, 4, 6, 7]
    for step in (2, 4, 6):
        assert norms[step] == pytest.approx(float((before[step - 1] - before[step]).norm()) / 0.5, rel=1e-3)
