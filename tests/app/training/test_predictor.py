"""What only scores has the model of a checkpoint, and no optimizer."""

import ast
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from app.checkpoint.files import whole_checkpoints
from app.checkpoint.saver import Saver
from app.optimizer import build as optimizer_build
from app.runtime.platform import Runtime
from app.training import predictor, resume
from app.training.state import RunState
from data_prep.dataset.format import load_manifest
from tests.app.conftest import built

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad"])
def test_a_predictor_scores_as_its_session_and_has_no_optimizer(
    optimizer: str, runtime: Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = built(runtime, dataset, f"optimizer={optimizer}")
    for batch in this.predictor.split("train").train_batches(64, 0, 0, 8):
        binary_cross_entropy_with_logits(this.forward(batch), batch.labels).backward()
        this.optimizer.step()
    saver = Saver(tmp_path, keep=1, asynchronous=False, local_world_size=1)
    saver.save(1, this.model, this.optimizer, resume.checkpoint_state(this, RunState(step=1), {}), best=False)
    expected = this.predictor.score(this.predictor.split("val").eval_batches(64)).logits
    assert this.model.fused_optimizer.state_dict()["state"]

    for owner, name in ((torch.optim.Optimizer, "__init__"), (optimizer_build, "make_optimizer")):
        monkeypatch.setattr(owner, name, Mock(side_effect=AssertionError("an optimizer was made")))
    (checkpoint,) = whole_checkpoints(tmp_path)
    loaded = predictor.load(checkpoint, this.config, runtime, dataset, load_manifest(dataset))
    scores = loaded.score(loaded.split("val").eval_batches(64)).logits
    np.testing.assert_array_equal(scores, expected)
    states = loaded.model.fused_optimizer.state_dict()["state"].values()  # of FBGEMM's views: SGD's have no tensors
    assert not [value for state in states for value in state.values()]


@pytest.mark.parametrize("command", ["evaluate", "recommend"])
def test_commands_that_score_make_no_session(command: str) -> None:
    for node in ast.walk(ast.parse((ROOT / f"app/{command}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "app.training":
            assert "session" not in {each.name for each in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.module == "app.training.session")
