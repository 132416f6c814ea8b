"""HSTU as it is prepared, read, scored and trained, against the naive program from the same raw events in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from app.runtime.platform import Runtime
from app.training import session
from data_prep.dataset.format import load_manifest
from tests import reference as plain
from tests.app.conftest import SMALL, composed
from tests.data_prep.conftest import prepare
from tests.extensions.sequences import event_logs
from tests.extensions.sequences import oracle as hstu
from tests.extensions.sequences.oracle import Event, Sample, Sizes
from tests.once import made_once

HISTORY, MIN_HISTORY, SCAN, WINDOW_SECONDS, MAX_SEQ_LEN = event_logs.reference()["params"].tolist()
CONTEXT = ["user", "user_x_artist", "user_x_album", "user_x_hour", "item_x_hour", "artist_x_hour", "user_x_is_organic"]
CONTEXT += ["user_x_artist_x_hour"]
SIZES = Sizes(
    HISTORY,
    SCAN,
    MAX_SEQ_LEN - 1 - len(CONTEXT),
    MIN_HISTORY,
    heads=2,
    queries=4,
    values=3,
    layers=2,
    divisor=float(MAX_SEQ_LEN),
)
MODEL = ["model=hstu", "model.embedding_dim=8", "sequences.hstu.dim=12", "sequences.hstu.num_layers=2"]
MODEL += ["sequences.hstu.num_heads=2", "sequences.hstu.attention_dim=4", "sequences.hstu.hidden_dim=3"]
MODEL += ["sequences.hstu.preprocessor_dim=6", "sequences.hstu.item_dim=10", "sequences.hstu.action_dim=2"]
MODEL += [f"sequences.hstu.max_seq_len={MAX_SEQ_LEN}", "sequences.hstu.attention_scale=max_seq_len"]
MODEL += ["sequences.hstu.position_bound=0.5"]
DATA = ["sequences.history=interleaved", f"sequences.history_length={HISTORY}", f"sequences.scan_events={SCAN}"]
DATA += [f"sequences.window_seconds={WINDOW_SECONDS}"]
OPTIMIZER = ["optimizer=rowwise_adagrad", "optimizer.dense=adam", "optimizer.lr=0.01", "optimizer.sparse_lr=0.05"]
OPTIMIZER += ["optimizer.beta1=0.95", "optimizer.beta2=0.999", "optimizer.eps=1e-3", "optimizer.max_grad_norm=0.5"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(directory: Path) -> None:
        prepare(*event_logs.write_reference_log(directory), f"data.path={directory}/out")

    return made_once(tmp_path_factory, "reference_log", make) / "out"


def raw_windows() -> list[list[Sample]]:
    """The samples of the reference's raw events; a listen of half a track or more is a click."""
    z, events = event_logs.reference(), []
    names = ("uid", "timestamp", "item_id", "is_organic", "played_ratio_pct", "event_type")
    for user, time, item, organic, ratio, kind in zip(*(z[f"raw_{name}"].tolist() for name in names), strict=True):
        event_type = event_logs.EVENT_TYPES[kind]
        is_listen = event_type == "listen"
        actions = (is_listen and ratio >= 50) | (event_type == "like") << 1 | (is_listen and 0 <= ratio < 50) << 2
        events.append(Event(user, time, item, organic, int(actions), is_listen))
    return hstu.windows(hstu.kept(events, 259_200, 88_200), WINDOW_SECONDS, SIZES)


def ids_of(sample: Sample) -> dict[str, list[int]]:
    """By table: of each context one, of an item and its attributes the history's and the candidate's."""
    z, event = event_logs.reference(), sample.event
    items = [*(each.item for each in sample.history), event.item]
    attributes = {
        name: dict(zip(z["meta_item_id"].tolist(), z[f"meta_{name}_id"].tolist(), strict=True))
        for name in ("artist", "album")
    }
    columns = {name: [values.get(item, 0) for item in items] for name, values in attributes.items()}
    ids = {"user": event.user, "item": event.item, "hour": event.time // 3600 % 24, "is_organic": event.organic}
    ids |= {"artist": columns["artist"][-1], "album": columns["album"][-1]}
    crosses = {
        name: [hstu.hash_of([ids[part] for part in name.split("_x_")], rows)]
        for name, rows in zip(CONTEXT[1:], z["cross_sizes"].tolist(), strict=True)
    }
    return {"user": [event.user], **crosses, "item": items, **columns}


def build(runtime: Runtime, root: Path) -> session.Session:
    overrides = [*MODEL, *DATA, *OPTIMIZER, "run.name=x", f"data.path={root}", *SMALL[-3:]]
    config = composed(*overrides)
    return session.build(config, runtime, root, load_manifest(root))


def oracle_parameters(this: session.Session) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)).double().requires_grad_() for name, values in this.parameters()}


def logits_of(samples: list[Sample], parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([hstu.logit(sample, ids_of(sample), CONTEXT, parameters, SIZES) for sample in samples])


def test_scores_are_those_of_the_raw_events(runtime: Runtime, root: Path) -> None:
    this, samples = build(runtime, root), raw_windows()[-1]
    scores = this.predictor.score(this.predictor.split("val").eval_batches(16))
    assert len(scores.labels) == len(samples)
    assert scores.labels.tolist() == [sample.label for sample in samples]
    indices = range(0, len(samples), max(1, len(samples) // 8))
    with torch.no_grad():
        expected = logits_of([samples[i] for i in indices], oracle_parameters(this))
    np.testing.assert_allclose(scores.logits[list(indices)], expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow("examples")
def test_steps_are_those_of_the_raw_events(runtime: Runtime, root: Path) -> None:
    this, windows = build(runtime, root), raw_windows()
    samples = [sample for window in windows[:-1] for sample in window]
    parameters, batch_size = oracle_parameters(this), 8
    tables = [parameters[table.name] for table in this.model.module.sparse_arch.tables]
    dense = [value for value in parameters.values() if not any(value is table for table in tables)]
    of_tables = plain.Optimizer("rowwise_adagrad", tables, [], eps=1e-3)
    of_dense = plain.Optimizer("adam", [], dense, eps=1e-3, betas=(0.95, 0.999))
    for step, batch in zip(range(4), this.predictor.split("train").train_batches(batch_size, 0, 0, 0), strict=False):
        this.begin_step(step)
        this.optimizer.zero_grad()
        loss = this.loss(this.forward(batch), batch.labels)
        loss.backward()
        this.optimizer.step()
        step_samples = samples[step * batch_size : (step + 1) * batch_size]
        expected = plain.bce(
            logits_of(step_samples, parameters), torch.tensor([sample.label for sample in step_samples])
        )
        expected.backward()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5), f"step {step}"
        gradients = [value.grad for value in dense if value.grad is not None]
        norm = torch.stack([(gradient**2).sum() for gradient in gradients]).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.5 / norm.item()))
        of_tables.step(0.05)
        of_dense.step(0.01)
    for name, values in this.parameters():
        np.testing.assert_allclose(values, parameters[name].detach().numpy(), atol=3e-5, err_msg=name)
