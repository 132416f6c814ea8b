"""Steps and schedules against golden numbers, torch, and plain arithmetic; the learning rate reaches all parameters."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from app.checkpoint.saver import Saver
from app.config.kinds import Algorithm, OptimizerName, ScheduleName
from app.config.train import OptimizerConfig, ScheduleConfig
from app.optimizer import _make_optimizer, learning_rate, set_learning_rate, set_step
from app.runtime.platform import Runtime
from app.sharding import planner
from app.training import checkpointer
from app.training.session import Session
from app.training.state import RunState
from common.errors import UserError
from common.extensions import load
from tests.app.conftest import built

GOLDEN = Path(__file__).parents[2] / "golden/reference/lr_policy.npz"
ANY = ["model.embedding_dim=8", "model.dense_arch=[16,8]", "model.over_arch=[16,1]", "train.global_batch_size=128"]


def test_schedule_equals_facebookresearch() -> None:
    golden = np.load(GOLDEN)
    assert len(golden) == 3
    for key in golden:
        match = re.fullmatch(r"lr_w(\d+)_s(\d+)_d(\d+)", key)
        assert match
        warmup, start, steps = map(int, match.groups())
        config = ScheduleConfig(ScheduleName.warmup_poly, warmup, start, steps)
        rates = [learning_rate(1.0, config, step) for step in range(len(golden[key]))]
        np.testing.assert_array_equal(rates, golden[key], err_msg=key)


STATES = {  # of torch's optimizers that have rows, and of others that could have one
    **{name.algorithm.torch: name.algorithm.state for name in OptimizerName if "torch.optim:" in name.algorithm.torch},
    "torch.optim:Adadelta": ("square_avg", "acc_delta"),
    "torch.optim:RMSprop": ("square_avg",),
    "torch.optim:Adamax": ("exp_avg", "exp_inf"),
    **dict.fromkeys(("torch.optim:AdamW", "torch.optim:RAdam"), ("exp_avg", "exp_avg_sq")),
}


@pytest.mark.parametrize("kind", STATES)
def test_torchs_optimizers_begin_with_the_state_of_their_row(kind: str) -> None:
    """Begun with state by its row, an optimizer makes the steps that it makes with its own state, of the same names."""

    def trained(optimizer: torch.optim.Optimizer, weights: list[torch.nn.Parameter]) -> set[str]:
        for step in range(4):
            optimizer.zero_grad()
            (torch.ones(2, 4) * step @ weights[0].T + weights[1]).square().sum().backward()
            optimizer.step()
        return {*optimizer.state[weights[0]]} - {"step"}

    def begun() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)), torch.nn.Parameter(torch.ones(3))]

    row, config = Algorithm(kind, state=dict.fromkeys(STATES[kind], "")), OptimizerConfig(OptimizerName.sgd, 0.01)
    by_row, own = begun(), begun()
    names = trained(_make_optimizer(row, row.torch, {}, [{"params": by_row}], 0.01, config), by_row)
    assert names == trained(load(kind)(own, lr=0.01), own) - {"momentum_buffer"} == {*STATES[kind]}
    for actual, expected in zip(by_row, own, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("algorithm", ["adam", "rowwise_adam", "lamb", "rowwise_lamb", "rowwise_adagrad"])
def test_a_checkpoint_holds_all_of_it(algorithm: str, runtime: Runtime, dataset: Path, tmp_path: Path) -> None:
    whole, resumed = (built(runtime, dataset, *ANY, f"optimizer={algorithm}") for _ in range(2))
    expected = "table_wise" if algorithm == "rowwise_adagrad" else "data_parallel"
    assert {entry.type for entry in whole.plan.tables.values()} == {expected}
    _train(whole, 0, 4)
    saver = Saver(tmp_path, keep=1, asynchronous=True, local_world_size=1)
    saver.save(4, whole.model, whole.optimizer, checkpointer.checkpoint_state(whole, RunState(step=4), {}), best=False)
    saver.wait()
    checkpointer.restore(tmp_path / "step_00000004", resumed)
    set_step(resumed.optimizer, 4)
    for this in (whole, resumed):
        _train(this, 4, 9)
    assert whole.parameters_digest() == resumed.parameters_digest()


def test_fused_optimizers_are_told_the_step(runtime: Runtime, dataset: Path) -> None:
    """FBGEMM's own count, which Adam and LAMB use, starts anew in each process and goes on in evaluations."""
    this = built(runtime, dataset, *ANY, "optimizer=adagrad")
    set_step(this.optimizer, 3)
    fused = [keyed._emb_module for _, keyed in this.model.fused_optimizer.optimizers[0][1].optimizers]
    assert [(module.iter_cpu.item(), module.iter.item()) for module in fused] == [(3, 3)]


def test_what_fbgemm_lacks_on_cpu_is_said_or_refused(
    runtime: Runtime, dataset: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    built(runtime, dataset, *ANY, "optimizer=adam")
    assert "FBGEMM has no adam on cpu: tables are data_parallel instead of table_wise" in logged.text
    logged.clear()
    built(runtime, dataset, *ANY, "optimizer=adam", "optimizer.sparse_weight_decay=0.1")
    assert "sharding" not in logged.text  # one process has whole tables in any case
    built(runtime, dataset, *ANY, "optimizer=adam", "optimizer.sparse_weight_decay=0.1", "sharding.types=auto")
    assert "sharding: optimizer.sparse_weight_decay=0.1 needs whole tables, so each process holds" in logged.text
    monkeypatch.setattr(planner, "MAX_REPLICATED", 361 * 8 - 1)
    with pytest.raises(UserError, match="2,888 parameters in tables are more than 2,887; use optimizer=rowwise_adagr"):
        built(runtime, dataset, *ANY, "optimizer=adam")


def _train(this: Session, first: int, last: int) -> None:
    """Steps [first, last)."""
    batches = this.split("train").train_batches(128, seed=5, epoch=0, first=first)
    for _, batch in zip(range(first, last), batches, strict=False):
        set_learning_rate(this.optimizer, 0.01, 0.01)
        this.optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(this.forward(batch), batch.labels).backward()
        this.optimizer.step()
