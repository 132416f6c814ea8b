"""`clickwork.load`: the scores of `python -m app.recommend`, from tables of any library, in any number and order."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import clickwork
from app.record.documents import read_scores
from app.runtime.platform import Runtime
from tests.app.in_process import command_here
from tests.clickwork.conftest import ROWS, Trained, make_rows

INPUTS = ["age", "price", "user", "item", "genres"]


@pytest.fixture(scope="module")
def predictor(trained: Trained) -> clickwork.Predictor:
    return clickwork.load(trained.run, platform="cpu")


def recommended(
    runtime: Runtime, trained: Trained, rows: list[dict[str, Any]], out: Path, *keys: str
) -> list[dict[str, Any]]:
    """What app.recommend ranks of these rows, in their order."""
    (out / "rows.json").write_text(json.dumps(rows))
    arguments = [f"candidates={out}/rows.json", f"out={out}/out.json", "top_k=null", *keys]
    assert command_here(runtime, "recommend", f"run={trained.run}", *arguments) == 0
    ranking = json.loads((out / "out.json").read_text())["ranking"]
    return sorted(ranking, key=lambda candidate: int(candidate["candidate"]))


class OtherLibrary:
    """A table of which nothing is known but Arrow's C interface; texts are views and categories, as polars has them."""

    def __init__(self, table: pa.Table) -> None:
        texts = table["user"].combine_chunks().dictionary_encode()
        views = pa.DictionaryArray.from_arrays(texts.indices, texts.dictionary.cast(pa.string_view()))
        self._table = table.set_column(2, "user", views)
        self._table = self._table.set_column(4, "genres", table["genres"].cast(pa.large_list(pa.string_view())))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, index=pd.Index(range(7, 7 + len(rows))))


def reader(rows: list[dict[str, Any]]) -> pa.RecordBatchReader:
    table = pa.Table.from_pylist(rows)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=130))


FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "pandas": frame,
    "arrow": pa.Table.from_pylist,
    "polars": pl.DataFrame,
    "polars categories": lambda rows: pl.DataFrame(rows).with_columns(pl.col("user").cast(pl.Categorical)).rechunk(),
    "other": lambda rows: OtherLibrary(pa.Table.from_pylist(rows)),
    "dicts": list,
    "numpy values": lambda rows: (
        frame(rows).assign(item=lambda table: table["item"].astype("int64")).to_dict("records")
    ),
    "reader": reader,
    "batches": lambda rows: iter(pa.Table.from_pylist(rows).to_batches(max_chunksize=57)),
    "frames": lambda rows: (frame(rows[start : start + 100]) for start in range(0, len(rows), 100)),
}


@pytest.mark.medium
@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_recommend(
    runtime: Runtime, trained: Trained, predictor: clickwork.Predictor, form: str, tmp_path: Path
) -> None:
    rows = [{name: row[name] for name in INPUTS} for row in make_rows(333, seed=1)]
    truth = recommended(runtime, trained, rows, tmp_path)
    order = np.random.default_rng(0).permutation(len(rows))
    logits = predictor.predict(FORMS[form]([rows[i] for i in order]), logits=True)
    assert logits.dtype == np.float32
    assert logits.tolist() == [truth[i]["logit"] for i in order]
    probabilities = predictor.predict(FORMS[form](rows[40:200]))
    expected = np.array([candidate["probability"] for candidate in truth[40:200]]).astype(np.float32)
    assert probabilities.dtype == np.float32
    assert probabilities.tolist() == expected.tolist()


def test_logits_are_those_of_evaluate(runtime: Runtime, trained: Trained, predictor: clickwork.Predictor) -> None:
    command_here(runtime, "evaluate", f"run={trained.run}", "split=test", f"keep_scores={ROWS}")
    truth = read_scores(trained.run, "test").logits
    assert len(truth) > 50
    np.testing.assert_allclose(predictor.predict(trained.rows[-len(truth) :], logits=True), truth, rtol=0, atol=1e-6)


@pytest.mark.medium
def test_threads_get_the_scores_of_one(trained: Trained, predictor: clickwork.Predictor) -> None:
    tables = [make_rows(50 + 70 * number, seed=number) for number in range(16)]
    expected = [predictor.predict(table, logits=True) for table in tables]
    with ThreadPoolExecutor(4) as pool:
        scored = list(pool.map(lambda table: predictor.predict(table, logits=True), tables))
    assert [logits.tolist() for logits in scored] == [logits.tolist() for logits in expected]


ROWS_WITH_MISSING: list[dict[str, Any]] = [
    {"age": 30.0, "price": 1.5, "user": "u1", "item": 3.0, "genres": ["g1"]},
    {"age": None, "price": None, "user": "u2", "item": None, "genres": None},
    {"age": 40.5, "price": 2.5, "user": None, "item": 4.0, "genres": ["g2", "g3"]},
]


def test_nan_is_missing_in_every_form(predictor: clickwork.Predictor) -> None:
    numbers = {"age": float("nan"), "price": float("nan"), "item": float("nan")}
    rows = [
        {name: numbers.get(name) if each is None else each for name, each in row.items()} for row in ROWS_WITH_MISSING
    ]
    expected = predictor.predict(ROWS_WITH_MISSING, logits=True).tolist()
    assert expected[1] == predictor.predict(rows[1], logits=True).tolist()[0]
    for form in set(FORMS) - {"numpy values"}:
        assert predictor.predict(FORMS[form](rows), logits=True).tolist() == expected, form


def test_rank_is_the_ranking_of_recommend(
    runtime: Runtime, trained: Trained, predictor: clickwork.Predictor, tmp_path: Path
) -> None:
    rows = make_rows(40, seed=1)
    user = {"age": 30, "user": "u3"}
    items = [
        {"id": f"item {number}", **{name: row[name] for name in INPUTS[3:]}, "price": row["price"]}
        for number, row in enumerate(rows)
    ]
    items[7]["item"] = 12345
    for name, content in (("items", items), ("user", [user])):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    arguments = [f"candidates={tmp_path}/items.json", f"user={tmp_path}/user.json", f"out={tmp_path}/out.json"]
    command_here(runtime, "recommend", f"run={trained.run}", "top_k=15", *arguments)
    truth = json.loads((tmp_path / "out.json").read_text())["ranking"]
    for candidates in (items, frame(items), random.Random(0).sample(items, len(items))):
        assert [each._asdict() for each in predictor.rank(user, candidates, top_k=15)] == truth
    whole = predictor.rank(None, [{**user, **item} for item in items], top_k=None)
    assert [each.candidate for each in whole[:15]] == [each["candidate"] for each in truth]
    assert [each.candidate for each in whole if each.out_of_vocabulary == ["item"]] == ["item 7"]


def test_unknown_values_are_counted(predictor: clickwork.Predictor, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{**row, "user": f"new{number}"} if number % 3 == 0 else row for number, row in enumerate(make_rows(30, 0))]
    rows[4]["genres"] = ["g1", "unheard", "of"]
    with caplog.at_level("WARNING", "clickwork"):
        predictor.predict(rows)
        predictor.predict(make_rows(30, 0))
    assert [record.getMessage() for record in caplog.records] == ["out of vocabulary, of 30 rows: user 10, genres 1"]


ROW = make_rows(1, 0)[0]


NO_TABLE = "; give a pandas, polars or Arrow table, record batches, or dicts"
NO_COLUMN = "; the model reads age, price, user, item, genres"
UNREADABLE = "table: not readable through Arrow's interface ("
TABLES: list[tuple[Any, str]] = [
    (pa.Table.from_pylist([ROW]).drop_columns(["item"]), f"table: no column item{NO_COLUMN}"),
    ([ROW, 7], f"table: row 2: int, not a dict{NO_TABLE}"),
    ([ROW, {**ROW, "age": "old"}], "table: row 2, column age: 'old' is not a number"),
    (pd.DataFrame([ROW, {**ROW, "age": [1]}]), UNREADABLE),
    ([{**ROW, "genres": {"g1"}}], "table: row 1, column genres: {'g1'} is not a category"),
    (pd.DataFrame([ROW]).assign(item=pd.PeriodIndex(["2024-01"], freq="M")), "table: row 1, column item: extension<"),
]


@pytest.mark.parametrize(("table", "message"), TABLES)
def test_tables_that_cannot_be_scored(predictor: clickwork.Predictor, table: Any, message: str) -> None:
    with pytest.raises(clickwork.Error) as error:
        predictor.predict(table)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert error.value.status == 2


@pytest.mark.parametrize("table", [[], pd.DataFrame(), iter([]), pd.DataFrame([ROW]).iloc[:0], pa.table({"age": []})])
def test_no_rows_have_no_scores(predictor: clickwork.Predictor, table: Any) -> None:
    assert predictor.rank(ROW, table) == []
    scores = predictor.predict(table)
    assert scores.shape == (0,)
    assert scores.dtype == np.float32
