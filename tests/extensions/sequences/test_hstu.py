"""HSTU against MLPerf's reference, value by value, and its attentions against each other."""

import itertools
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from extensions.sequences import hstu
from extensions.sequences.event_log import SequenceLayout
from extensions.sequences.hstu import HSTU, attend
from extensions.sequences.keys import Attention, HSTUConfig
from tests.extensions.sequences import hstu_reference as reference
from tests.extensions.sequences.hstu_reference import ATTENTIONS, GOLDEN, INTERPRETED

bce = nn.functional.binary_cross_entropy_with_logits
MLPERF = HSTUConfig(
    dim=512, num_layers=3, num_heads=4, attention_dim=128, hidden_dim=128, preprocessor_dim=256, item_dim=512
)


@pytest.mark.parametrize(
    ("attention", "warmup_steps", "steps"),
    [
        (Attention.padded, 0, 10),
        (Attention.bucketed, 0, 10),
        (Attention.bucketed, 4, 10),
        pytest.param(Attention.triton, 0, 3, marks=INTERPRETED),  # a step takes four seconds
    ],
)
def test_ten_steps_equal_the_reference(attention: Attention, warmup_steps: int, steps: int) -> None:
    """The reference's losses are up to 3e-6 from float64's, relative, and ours may be on the other side of them."""
    kind = "warm_" if warmup_steps else ""
    model = reference.model(attention)
    trainer = reference.Trainer(model, warmup_steps)
    for step, batch in enumerate(itertools.islice(reference.batches(), steps)):
        logits = model(batch.sequences, batch.ids).squeeze(1)
        loss = reference.LOSS_WEIGHT * bce(logits, (batch.actions & 1).float())
        norm = trainer.update(loss)
        assert loss.item() == pytest.approx(GOLDEN[f"{kind}losses"][step], rel=1e-5)
        np.testing.assert_allclose(logits.detach(), GOLDEN[f"{kind}logits"][step], atol=1e-4)
        if not warmup_steps:
            assert norm == pytest.approx(GOLDEN["grad_norms"][step], rel=1e-4)
    if (warmup_steps, steps) == (0, 10):
        for reference_name, parameter_name in reference.names().items():
            final = GOLDEN[f"final.{reference_name}"]
            np.testing.assert_allclose(model.get_parameter(parameter_name).detach()[: len(final)], final, atol=5e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_of_the_first_step_equal_the_reference(attention: Attention) -> None:
    model = reference.model(attention)
    batch = next(reference.batches())
    logits = model(batch.sequences, batch.ids).squeeze(1)
    (reference.LOSS_WEIGHT * bce(logits, (batch.actions & 1).float())).backward()
    for reference_name, parameter_name in reference.names().items():
        grad = model.get_parameter(parameter_name).grad
        assert grad is not None
        expected = GOLDEN[f"grad0.{reference_name}"]
        np.testing.assert_allclose(grad[: len(expected)], expected, atol=1e-7, err_msg=parameter_name)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_several_candidates_and_tasks_equal_the_reference(attention: Attention) -> None:
    model = reference.model(attention, num_tasks=3)
    trainer = reference.Trainer(model)
    batch_logits = []
    for step, batch in enumerate(reference.batches("multi_")):
        logits = model(batch.sequences, batch.ids)
        tasks = [
            bce(logits[:, 0], (batch.actions & 1).float()),
            bce(logits[:, 1], (batch.actions >> 1 & 1).float()),
            nn.functional.mse_loss(logits[:, 2], batch.watch.float()),
        ]
        loss = reference.LOSS_WEIGHT * torch.stack(tasks).sum()
        trainer.update(loss)
        # The reference's own are 1.4e-5 from double precision.
        assert loss.item() == pytest.approx(GOLDEN["multi_losses"][step], abs=3e-5)
        batch_logits.append(logits.detach())
    np.testing.assert_allclose(torch.cat(batch_logits), GOLDEN["multi_logits"], atol=5e-4)


def test_a_sample_scores_the_same_in_any_company() -> None:
    """Given the divisor of the whole batch."""
    model = reference.model(Attention.bucketed).eval()
    whole = next(reference.batches())
    with torch.no_grad():
        together = model(whole.sequences, whole.ids)
        for sample in range(8):
            alone = next(reference.batches(part=slice(sample, sample + 1)))
            np.testing.assert_allclose(model(alone.sequences, alone.ids)[0], together[sample], atol=1e-6)


def test_initial_weights_are_xaviers() -> None:
    """Normal within each part of the preprocessor, uniform in the item's and the head, so within their bound."""
    torch.manual_seed(0)
    model = HSTU(MLPERF, nn.Identity(), 512, reference.KEYS)
    for part, is_normal in ((model.action, True), (model.item, False), (model.head, False)):
        for layer in (module for module in part.modules() if isinstance(module, nn.Linear)):
            deviation = math.sqrt(2 / (layer.in_features + layer.out_features))
            assert float(layer.weight.std()) == pytest.approx(deviation, rel=0.1)
            assert (float(layer.weight.abs().max()) > 1.01 * math.sqrt(3) * deviation) is is_normal
            assert not layer.bias.any()


def by_definition(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout) -> Tensor:
    """Position by position, in double precision."""
    out, start = torch.zeros(len(q), *v.shape[1:], dtype=torch.float64), 0
    q, k, v = q.double(), k.double(), v.double()
    for length, candidates in zip(layout.lengths, layout.num_candidates, strict=True):
        history = length - candidates
        for i in range(length):
            for j in [*range(min(i, history)), i]:
                score = (q[start + i] * k[start + j]).sum(1) / math.sqrt(q.shape[2])
                out[start + i] += (score * score.sigmoid() / layout.divisor).unsqueeze(1) * v[start + j]
        start += length
    return out


@pytest.mark.medium
@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(max_examples=10 if reference.ASKED else 25, deadline=None)  # interpreted, one takes three seconds
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_attention_is_the_definition(
    attention: Attention, sizes: list[tuple[int, int]], is_single: bool, candidates_only: bool
) -> None:
    """Values and gradients, for sequences of any lengths, empty ones too, with one candidate, several or none."""
    counts = [1 if is_single else candidates for _, candidates in sizes]
    assume(any(counts))
    layout = SequenceLayout([history + count for (history, _), count in zip(sizes, counts, strict=True)], counts, 7.0)
    torch.manual_seed(0)
    total = sum(layout.lengths)
    q, k, v = (torch.randn(total, 2, width, requires_grad=True) for width in (3, 3, 5))
    ends = np.cumsum(layout.lengths)
    places = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)])
    rows = torch.from_numpy(places) if candidates_only else torch.arange(total)
    expected = by_definition(q, k, v, layout)[rows]
    weights = torch.randn(expected.shape)
    expected_grads = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    out = attend(attention, q[rows], k, v, layout, candidates_only)
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-5)
    grads = torch.autograd.grad((out * weights).sum(), (q, k, v))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fault", ["", "an error", "another result"])
def test_auto_takes_kernels_only_where_they_agree_on_the_first_batch(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels in their place are the padded attention, so that this runs without a GPU."""
    calls = []

    def kernels(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
        calls.append(fault)
        if fault == "an error":
            raise RuntimeError("out of shared memory")
        return attend(Attention.padded, q, k, v, layout, candidates_only) * (2 if fault else 1)

    monkeypatch.setattr(hstu, "prefers_triton", lambda device: True)
    monkeypatch.setattr(hstu, "attend_by_triton", kernels)
    monkeypatch.setattr(hstu, "_AGREES", {})
    monkeypatch.setattr(logging.getLogger("clickwork"), "propagate", True)
    layout = SequenceLayout([30, 7], [1, 1], 30.0)
    q, k, v = (torch.randn(37, 2, 8) for _ in range(3))
    for _ in range(2):
        torch.testing.assert_close(attend(Attention.auto, q, k, v, layout), attend(Attention.padded, q, k, v, layout))
    assert len(calls) == (1 if fault else 3)
    reasons = {"an error": "fail here (out of shared memory)", "another result": "differ by"}
    assert (reasons[fault] in caplog.text) if fault else not caplog.text


def test_chunks_and_buckets_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layout = SequenceLayout([300, 7, 0, 280, 50, 51, 0], [1, 1, 0, 1, 1, 1, 0], 300.0)
    q, k, v = (torch.randn(sum(layout.lengths), 2, 8, requires_grad=True) for _ in range(3))
    expected = attend(Attention.padded, q, k, v, layout)
    expected_grads = torch.autograd.grad(expected.square().sum(), (q, k, v))
    monkeypatch.setattr("extensions.sequences.hstu.CHUNK_BYTES", 1 << 14)
    out = attend(Attention.bucketed, q, k, v, layout)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    for grad, expected_grad in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-6, rtol=1e-4)
