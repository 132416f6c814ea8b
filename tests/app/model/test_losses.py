"""Training losses against the oracle's, which are of predictions; a run that is not trained on the logloss."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error

from app.config.kinds import TASKS
from app.config.train import LossConfig, LossName
from app.model.dlrm import make_loss
from tests import reference
from tests.app.conftest import SMALL, Command


@pytest.mark.parametrize("threshold", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "class_weights"), [(LossName.bce, None), (LossName.weighted_bce, [0.7, 3.0]), (LossName.mse, None)]
)
def test_loss_and_gradient_equal_the_oracle(
    name: LossName, class_weights: list[float] | None, threshold: float
) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(64, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(0, 2, (64,), dtype=torch.float64)
    loss = make_loss(LossConfig(name, class_weights, threshold))(logits, labels)
    weights = (1.0, 1.0) if class_weights is None else (class_weights[0], class_weights[1])
    kind = "mse" if name is LossName.mse else "bce"
    expected = reference.loss_of_predictions(logits, labels, kind, weights, threshold)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected, logits))
    beyond = torch.sigmoid(logits.detach()) - 0.5
    assert torch.equal(gradient == 0, beyond.abs() > 0.5 - threshold)
    assert not threshold or 0 < int((gradient == 0).sum()) < 64


def test_the_loss_of_numbers_is_scikit_learns_and_has_no_sigmoid() -> None:
    rng = np.random.default_rng(0)
    preds, labels = rng.normal(3, 2, (2, 50))
    loss = make_loss(LossConfig(LossName.mse), 0.5, TASKS["number"])
    value = loss(torch.from_numpy(preds), torch.from_numpy(labels))
    assert value.item() == pytest.approx(mean_squared_error(labels, preds) / 2, rel=1e-12)


@pytest.mark.parametrize("name", LossName)
def test_over_all_rows_the_loss_is_the_mean_by_weight(name: LossName) -> None:
    rng = np.random.default_rng(0)
    logits, labels, weights = rng.normal(size=60), rng.integers(0, 2, 60).astype(float), rng.random(60) * 9
    class_weights = [0.7, 3.0] if name is LossName.weighted_bce else None
    loss = make_loss(LossConfig(name, class_weights), 1.0, TASKS["click"], weights.mean())
    batches = zip(*(torch.from_numpy(each).split(20) for each in (logits, labels, weights)), strict=True)
    value = np.mean([loss(*batch).item() for batch in batches])
    preds = 1 / (1 + np.exp(-logits))
    of_class = np.where(labels > 0, 3.0, 0.7) if class_weights else 1
    each = of_class * -np.log(np.where(labels > 0, preds, 1 - preds))
    each = (preds - labels) ** 2 if name is LossName.mse else each
    assert value == pytest.approx(np.average(each, weights=weights), rel=1e-7)


def test_a_hopeless_sample_keeps_its_loss_and_its_gradient() -> None:
    logits = torch.tensor([-200.0, 120.0], requires_grad=True)
    loss = make_loss(LossConfig(LossName.bce))(logits, torch.tensor([1.0, 0.0]))
    loss.backward()
    assert logits.grad is not None
    assert (loss.item(), logits.grad.tolist()) == (160.0, [-0.5, 0.5])


@pytest.mark.medium
def test_figures_of_another_loss_are_not_called_logloss(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    keys = [*SMALL, f"data.path={dataset}", "run.name=squares", "train.max_steps=30", "loss=mse", "loss.threshold=0.01"]
    keys += ["optimizer.lr=0.05"]
    run_app("train", *keys)
    figures = json.loads((tmp_path / "runs/squares/summary.json").read_bytes())
    assert figures["train"]["logloss"] is None
    assert figures["train"]["loss"] < 0.3
    assert 0.5 < figures["eval"]["logloss"] < 1
    assert figures["eval"]["auc"] > 0.6
    refusal = run_app("train", *SMALL, f"data.path={dataset}", "run.name=squares", "train.max_steps=40", status=2)
    assert "loss.name=bce" in refusal.stderr
