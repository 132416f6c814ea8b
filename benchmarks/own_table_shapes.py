"""Tables of clicks of ten shapes, drawn from known models, for judging a default model.

The shapes were written before any rule of a default model, and rules are judged on seeds that they were not made with.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

Columns: TypeAlias = dict[str, NDArray[Any]]


class TableShape(NamedTuple):
    """A table: its rows, how they are drawn, the dense columns, and keys of its preparation.

    draw: returns the columns and the logits of a click; infinite ones are labels.
    """

    rows: int
    draw: Callable[[np.random.Generator, int], tuple[Columns, NDArray[np.float64]]]
    dense: tuple[str, ...] = ()
    schema: dict[str, Any] = {}  # noqa: RUF012 -- never changed
    keys: tuple[str, ...] = ()


def write_table(shape: TableShape, seed: int, directory: Path) -> dict[str, list[str]]:
    """Write rows.parquet and schema.yaml; return the keys that prepare them."""
    draw = np.random.default_rng([seed, shape.rows])
    columns, logits = shape.draw(draw, shape.rows)
    clicks = draw.random(shape.rows) < 1 / (1 + np.exp(-logits))
    pq.write_table(pa.table({"click": clicks.astype(np.int8), **columns}), directory / "rows.parquet")
    inputs = [name for name in columns if name not in shape.schema.values()]
    sparse = [name for name in inputs if name not in shape.dense]
    schema = {"label": "click", "dense": [*shape.dense], "sparse": sparse, **shape.schema}
    (directory / "schema.yaml").write_text(yaml.safe_dump(schema), encoding="utf-8")
    return {"model": [f"data.raw={directory}/rows.parquet", f"data.schema={directory}/schema.yaml", *shape.keys]}


def draw_zipf(draw: np.random.Generator, size: int, rows: int, exponent: float = 1.1) -> NDArray[np.int64]:
    """Draw ids [rows] below `size`; the k-th most frequent has a weight of k ** -exponent."""
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return draw.permutation(size)[draw.choice(size, rows, p=weights / weights.sum())]


def centre_logits(logits: NDArray[np.float64], rate: float, spread: float = 1.5) -> NDArray[np.float64]:
    """Scale logits to a standard deviation, and shift them so that about `rate` of the rows are clicks."""
    scaled = spread * (logits - logits.mean()) / logits.std()
    shifts = np.linspace(-12, 12, 4801)
    # Some rows suffice to find the shift, which would be a search over all of them.
    sample = scaled[:: max(1, len(scaled) // 2000)]
    rates = (1 / (1 + np.exp(-(sample[:, None] + shifts)))).mean(0)
    return scaled + shifts[np.argmin(np.abs(rates - rate))]


def _draw_effects(draw: np.random.Generator, ids: NDArray[np.int64], spread: float = 1.0) -> NDArray[np.float64]:
    """Draw a number for each id, with this standard deviation; return those of ids [rows]."""
    return draw.normal(0, spread, int(ids.max()) + 1)[ids]


def _draw_taste(
    draw: np.random.Generator, one: NDArray[np.int64], two: NDArray[np.int64], dim: int = 4
) -> NDArray[Any]:
    """Draw a vector for each id; return inner products of two ids' vectors [rows]: what one id alone does not tell."""
    vectors = [draw.normal(0, 1, (int(ids.max()) + 1, dim)) for ids in (one, two)]
    return np.einsum("rd,rd->r", vectors[0][one], vectors[1][two]) / np.sqrt(dim)


def _draw_ids(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Users and items, with tastes."""
    user, item = draw.integers(1500, size=rows), draw_zipf(draw, 1000, rows)
    logits = 0.8 * _draw_effects(draw, user) + _draw_effects(draw, item) + 0.8 * _draw_taste(draw, user, item)
    return {"user": user, "item": item}, centre_logits(logits, 0.45)


def _draw_categories(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Ten categories of 2 to 4,000 values, of which two pairs interact."""
    sizes = (900, 4000, 7, 7, 2, 3, 2, 9, 80, 230)
    columns = {f"c{place}": draw_zipf(draw, size, rows, 0.9) for place, size in enumerate(sizes)}
    logits = sum(_draw_effects(draw, ids, 0.5) for ids in columns.values())
    logits = (
        logits + 1.5 * _draw_taste(draw, columns["c0"], columns["c1"]) + _draw_taste(draw, columns["c0"], columns["c8"])
    )
    return columns, centre_logits(np.asarray(logits), 0.33, 2.0)


def _draw_numbers(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Twenty numbers, of which half count, some by curves and a product."""
    values = draw.normal(size=(rows, 20))
    logits = np.sin(2 * values[:, 0]) + values[:, 1] * values[:, 2] + np.abs(values[:, 3]) + values[:, 4:10].sum(1) / 3
    columns: Columns = {f"n{place}": values[:, place] for place in range(20)}
    columns["n1"] = np.exp(columns["n1"])  # has a long tail
    columns["kind"] = draw.integers(4, size=rows)  # because a model needs a category
    return columns, centre_logits(logits, 0.5, 2.0)


def _draw_mixed(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Seven numbers with long tails and 33 categories; every third category counts."""
    numbers = draw.lognormal(2, 1, (rows, 7))
    columns: Columns = {f"n{place}": np.round(numbers[:, place], 2) for place in range(7)}
    columns |= {f"c{place}": draw_zipf(draw, 5 + 30 * place, rows) for place in range(33)}
    logits = sum(_draw_effects(draw, columns[f"c{place}"], 0.4) for place in range(0, 33, 3))
    logits = logits + np.log(numbers[:, 0]) + (numbers[:, 1] > 8) + _draw_taste(draw, columns["c5"], columns["c20"])
    return columns, centre_logits(np.asarray(logits), 0.25, 2.5)


def _draw_few(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Three columns, for a table of few rows."""
    city, plan, age = draw.integers(40, size=rows), draw.integers(3, size=rows), draw.integers(18, 80, size=rows)
    logits = _draw_effects(draw, city, 0.5) + _draw_effects(draw, plan) + (age - 45) / 20
    return {"city": city, "plan": plan, "age": age.astype(np.float64)}, centre_logits(logits, 0.4)


def _draw_wide(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """A hundred and twenty columns, of which five count."""
    columns: Columns = {f"n{place}": draw.normal(size=rows) for place in range(60)}
    columns |= {f"c{place}": draw.integers(20, size=rows) for place in range(60)}
    logits = (
        columns["n0"]
        + columns["n1"] * columns["n2"]
        + _draw_effects(draw, columns["c0"])
        + _draw_effects(draw, columns["c1"])
    )
    return columns, centre_logits(logits, 0.5)


def _draw_rare(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Ads on sites, of which one in fifty is clicked."""
    ad, site, device = (
        draw_zipf(draw, 20_000, rows, 1.05),
        draw_zipf(draw, 3000, rows, 1.2),
        draw.integers(5, size=rows),
    )
    logits = _draw_effects(draw, ad) + _draw_effects(draw, site) + _draw_effects(draw, device, 0.5)
    return {"ad": ad, "site": site, "device": device}, centre_logits(logits, 0.02)


def _draw_drifting(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Items whose rates walk; the split is by time."""
    time = np.sort(draw.integers(0, 60 * 86_400, rows))
    user, item = draw.integers(2000, size=rows), draw_zipf(draw, 400, rows)
    walks = np.cumsum(draw.normal(0, 0.25, (61, 400)), 0)
    logits = walks[time // 86_400, item] + 0.7 * _draw_effects(draw, user) + 0.7 * _draw_taste(draw, user, item)
    return {"user": user, "item": item, "at": 1_700_000_000 + time}, centre_logits(logits, 0.4)


def _draw_grouped(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """Users of test are not in train: what helps is what items and segments tell."""
    user, item = draw.integers(3000, size=rows), draw_zipf(draw, 800, rows)
    segment = draw.integers(12, size=3000)[user]
    logits = _draw_effects(draw, item) + 0.8 * _draw_taste(draw, segment, item) + 0.8 * _draw_effects(draw, user)
    return {"user": user, "segment": segment, "item": item}, centre_logits(logits, 0.45)


def _draw_skewed(draw: np.random.Generator, rows: int) -> tuple[Columns, NDArray[np.float64]]:
    """An amount with a very long tail, and ids of which few are frequent."""
    amount = draw.pareto(1.2, rows) * 10
    query, shop = draw_zipf(draw, 30_000, rows, 1.3), draw_zipf(draw, 200, rows, 1.6)
    logits = np.log1p(amount) + _draw_effects(draw, query) + _draw_effects(draw, shop, 0.5)
    return {"amount": amount, "query": query, "shop": shop}, centre_logits(logits, 0.15)


SHAPES = {
    "ids": TableShape(80_000, _draw_ids),
    "categories": TableShape(100_000, _draw_categories),
    "numbers": TableShape(40_000, _draw_numbers, tuple(f"n{place}" for place in range(20))),
    "mixed": TableShape(60_000, _draw_mixed, tuple(f"n{place}" for place in range(7))),
    "few": TableShape(3_000, _draw_few, ("age",)),
    "wide": TableShape(20_000, _draw_wide, tuple(f"n{place}" for place in range(60))),
    "rare": TableShape(100_000, _draw_rare),
    "drifting": TableShape(80_000, _draw_drifting, schema={"time": "at"}),
    "grouped": TableShape(60_000, _draw_grouped, keys=("data.split.method=group", "data.split.column=user")),
    "skewed": TableShape(50_000, _draw_skewed, ("amount",)),
}
