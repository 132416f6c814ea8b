"""Dropout's masks against a hash computed number by number, and as random numbers."""

import numpy as np
import pytest
import torch
from scipy import stats

from app.model.layers import Dropout
from tests.oracles import field_models

ROWS, WIDTH = 2048, 200


def mask_of(
    rate: float, seed: int = 3, step: int = 7, layer: int = 1, first_row: int = 0, rows: int = ROWS
) -> torch.Tensor:
    dropout = Dropout(WIDTH, rate)
    dropout.draw(seed, step, layer, first_row)
    return dropout.mask(rows)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
def test_masks_are_those_of_the_hash(rate: float) -> None:
    expected = field_models.mask(3, 7, 1, 100, 9, WIDTH, rate)
    assert np.array_equal(mask_of(rate, first_row=100, rows=9).numpy(), expected)


def test_a_row_has_its_mask_on_whatever_process() -> None:
    whole = mask_of(0.3)
    for start, stop in ((0, 1024), (1024, 2048), (700, 701)):
        assert torch.equal(mask_of(0.3, first_row=start, rows=stop - start), whole[start:stop])


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_masks_are_as_good_as_independent(rate: float) -> None:
    """By rows, by columns, and beside masks of another step, layer and seed."""
    mask = mask_of(rate).numpy()
    for axis in (0, 1):
        counts = mask.sum(axis)
        expected, number = mask.shape[axis] * (1 - rate), mask.shape[1 - axis]
        statistic = ((counts - expected) ** 2).sum() / (mask.shape[axis] * rate * (1 - rate))
        assert 1e-4 < stats.chi2(number).cdf(statistic) < 1 - 1e-4
    for other in (mask_of(rate, step=8), mask_of(rate, layer=2), mask_of(rate, seed=4), mask_of(rate, first_row=1)):
        share = np.mean(mask != other.numpy())
        assert share == pytest.approx(2 * rate * (1 - rate), abs=5 * (0.25 / mask.size) ** 0.5)
    neighbours = np.corrcoef(mask[:, :-1].ravel(), mask[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / mask.size**0.5


def test_values_are_scaled_in_training_and_untouched_in_evaluation() -> None:
    dropout, inputs = Dropout(WIDTH, 0.25), torch.randn(8, WIDTH, requires_grad=True)
    dropout.draw(0, 0, 0, 0)
    mask = dropout.mask(8)
    outputs = dropout(inputs)
    torch.testing.assert_close(outputs, torch.where(mask, inputs / 0.75, 0.0))
    outputs.sum().backward()
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, mask / 0.75)
    assert dropout.eval()(inputs) is inputs
    assert not dropout.state_dict()
