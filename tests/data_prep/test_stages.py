"""Files, orders and fits of stages: codes, columns, packed rows, shuffles, dense columns, multi-hot."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.codec.values import FITS, transform_column
from data_prep.dataset.multi_hot import MultiHotTables
from data_prep.stages import fit as fit_dense
from data_prep.stages.fit import UNIT_EXPONENT, exact_sums
from data_prep.stages.place import inverse_permutation
from data_prep.stages.write import RowLayout


@pytest.mark.medium
@pytest.mark.parametrize("num_dense", [0, 3])
@pytest.mark.parametrize("largest", [(), (255, 256, 65535, 65536, 0, 2**31 - 1), (10, 20, 30)])
def test_packed_rows_come_back_at_other_indices(num_dense: int, largest: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(largest))
    layout, rows = RowLayout(num_dense, largest), 500
    ids = [rng.integers(0, most, rows, endpoint=True) for most in largest]
    arrays = {
        "labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "dense": rng.standard_normal((rows, num_dense)).astype(np.float32),
        "sparse": np.array(ids).reshape(len(largest), rows).T.astype(np.int32),
    }
    arrays["sparse"][0] = largest
    left_out = rng.random(rows) < 0.1
    places = np.full(rows, -1)
    places[~left_out] = rng.permutation(rows - left_out.sum())
    records = np.zeros((rows - left_out.sum(), layout.row_bytes), np.uint8)
    layout.pack(arrays, places, records)
    outputs = {kind: np.zeros((len(records), layout.width(kind)), array.dtype) for kind, array in arrays.items()}
    back = rng.permutation(len(records))
    layout.unpack(records, back, outputs)
    for kind, array in arrays.items():
        np.testing.assert_array_equal(outputs[kind][back[places[~left_out]]], array[~left_out])


@pytest.mark.parametrize("rows", [0, 1, 1000, 300_000])
def test_places_are_the_inverse_of_numpy_s_permutation(rows: int) -> None:
    places = inverse_permutation(rows, 7)
    np.testing.assert_array_equal(places[np.random.RandomState(7).permutation(rows)], np.arange(rows))


LIMIT = float(np.finfo(np.float64).max) / 2
NUMBERS = st.one_of(
    st.floats(-LIMIT, LIMIT),
    st.integers(-1000, 1000).map(float),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.3e-308, 1e300, -LIMIT, LIMIT, 0.1]),
)
COLUMNS = st.lists(NUMBERS, min_size=1, max_size=40).map(lambda values: np.array(values) + 0.0)


MANY = np.random.default_rng(0).lognormal(0, 30, 50_000) * np.where(np.arange(50_000) % 3, 1, -1)


@pytest.mark.medium
@given(COLUMNS)
@example(MANY)
def test_sums_are_exact(values: NDArray[np.float64]) -> None:
    total, square = exact_sums(values)
    assert Fraction(total, 1 << UNIT_EXPONENT) == sum(map(Fraction, values.tolist()))
    assert Fraction(square, 1 << 2 * UNIT_EXPONENT) == sum(Fraction(value) ** 2 for value in values.tolist())


def fit_of(values: NDArray[np.float64], name: str) -> list[float]:
    if name == "standard":
        return fit_dense._mean_and_deviation([(len(values), *exact_sums(values))])
    return [values.min(), values.max()] if name == "minmax" else fit_dense.quantiles(values.copy())


@given(COLUMNS, COLUMNS)
@example(np.array([1, 5e-324, -5e-324]), np.array([0.0]))
@pytest.mark.parametrize("name", FITS)
def test_every_fitted_transform_is_finite_and_keeps_the_order(name: str, fitted: Any, others: Any) -> None:
    fit, ordered = fit_of(fitted, name), np.sort(np.concatenate((fitted, others)))
    result = transform_column(ordered, name, fit)
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    assert (np.diff(result) >= 0).all()
    assert name != "quantile" or ((result >= 0) & (result <= 1)).all()


@pytest.mark.medium
@given(st.data())
def test_bags_are_the_rows_of_their_table(data: st.DataObject) -> None:
    size, rows = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 30))
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=50)), np.int32)
    table = (np.arange(rows * size, dtype=np.int32) * 7 % rows).reshape(rows, size)
    tables = MultiHotTables([None, table])
    guarded = np.full((len(ids) + 2) * size, -1, np.int32)
    tables.expand(1, ids, guarded[size:-size])
    np.testing.assert_array_equal(guarded[size:-size].reshape(-1, size), table[ids])
    assert (guarded[[*range(size), *range(-size, 0)]] == -1).all()
    bags = np.empty(len(ids) * size, np.int32)
    tables.expand(1, np.stack([ids, ids], 1)[:, 0], bags)
    np.testing.assert_array_equal(bags.reshape(-1, size), table[ids])
    for beyond in (-1, rows, 2**31 - 1):
        with pytest.raises(IndexError, match="an id is not in its multi-hot table"):
            tables.expand(1, np.array([*ids, beyond], np.int32), np.empty(len(ids) * size + size, np.int32))
