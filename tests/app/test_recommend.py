"""`python -m app.recommend`: the same scores as evaluation gives, whatever the form, order and number of candidates."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from data_prep.dataset.options import CRITEO
from data_prep.encoder import Shape, read_new_rows
from tests.app.conftest import SMALL, Command, Refusal
from tests.app.run_files import summary
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare

ROWS, HELD_OUT = 700, 100
NAMES = [*CRITEO.dense, *CRITEO.sparse]


@pytest.fixture
def run(tmp_path: Path, run_app: Command) -> dict[str, Any]:
    """A run on rows of which the last 100 are validation and test."""
    (tmp_path / "raw.tsv").write_bytes(oracle.make_rows(ROWS, seed=4))
    prepare(f"data.raw={tmp_path}/raw.tsv", f"data.path={tmp_path}/data")
    return train(run_app, tmp_path)


def train(run_app: Command, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    """The figures of its evaluation."""
    run_app("train", *SMALL, "data.path=data", "run.name=r", "train.max_steps=9", "eval.split=test", *overrides)
    return summary(tmp_path / "runs/r")["eval"]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Lists in them are joined by |."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({key: "|".join(it) if isinstance(it, list) else it for key, it in row.items()} for row in rows)


def ranking(run_app: Command, tmp_path: Path, candidates: str, *overrides: str) -> list[dict[str, Any]]:
    run_app("recommend", "run=runs/r", f"candidates={candidates}", "top_k=null", "out=out.json", *overrides)
    return json.loads((tmp_path / "out.json").read_bytes())["ranking"]


def logits(ranked: list[dict[str, Any]]) -> dict[str, float]:
    return {candidate["candidate"]: candidate["logit"] for candidate in ranked}


@pytest.mark.slow("processes")
def test_scores_are_those_of_evaluation_in_any_order(run: dict[str, Any], run_app: Command, tmp_path: Path) -> None:
    lines = (tmp_path / "raw.tsv").read_text().splitlines(keepends=True)
    test = lines[-(HELD_OUT // 2) :]
    (tmp_path / "test.tsv").write_text("".join(test))
    ranked = ranking(run_app, tmp_path, "test.tsv")
    assert [candidate["rank"] for candidate in ranked] == list(range(1, len(test) + 1))
    probabilities = np.array([candidate["probability"] for candidate in ranked])
    assert (np.diff(probabilities) <= 0).all()
    labels = [int(test[int(candidate["candidate"]) - 1][0]) for candidate in ranked]
    assert run["samples"] == len(test)
    assert log_loss(labels, probabilities) == pytest.approx(run["logloss"], rel=1e-6)
    assert roc_auc_score(labels, probabilities) == pytest.approx(run["auc"], abs=1e-9)

    order = np.random.default_rng(0).permutation(ROWS)
    (tmp_path / "all.tsv").write_text("".join(lines[i] for i in order))
    scores = logits(ranking(run_app, tmp_path, "all.tsv"))
    by_row = {int(order[int(name) - 1]): score for name, score in scores.items()}
    expected = logits(ranked)
    first = ROWS - len(test)
    assert {str(row - first + 1): by_row[row] for row in range(first, ROWS)} == expected


@pytest.mark.slow("processes")
def test_every_form_of_a_file_gives_the_same(run: dict[str, Any], run_app: Command, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in oracle.make_rows(12, seed=5).decode().splitlines()]
    (tmp_path / "c.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "bare.tsv").write_text("".join("\t".join(row[1:]) + "\n" for row in rows))
    objects: list[dict[str, Any]] = [dict(zip(NAMES, row[1:], strict=True)) for row in rows]
    write_csv(tmp_path / "c.csv", [dict(reversed(item.items())) for item in objects])
    numbers = [
        {key: (int(value) if value else None) if key in CRITEO.dense else value or None for key, value in item.items()}
        for item in objects
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(item) + "\n" for item in numbers))
    pyarrow.parquet.write_table(pa.Table.from_pylist(numbers), tmp_path / "c.parquet")
    user = {key: numbers[3][key] for key in CRITEO.dense}
    ads = [{"id": f"ad {i}", **{key: item[key] for key in CRITEO.sparse}} for i, item in enumerate(numbers)]
    (tmp_path / "scenario.json").write_text(json.dumps({"user": user, "candidates": ads}))
    (tmp_path / "user.jsonl").write_text(json.dumps(user))
    (tmp_path / "ads.json").write_text(json.dumps(ads))

    expected = ranking(run_app, tmp_path, "c.tsv")
    for name in ("bare.tsv", "c.csv", "c.parquet"):
        assert ranking(run_app, tmp_path, name) == expected, name
    forms = []
    for path in (tmp_path / name for name in ("bare.tsv", "c.csv", "c.jsonl")):
        new = read_new_rows(path, Shape(CRITEO.columns, "\t", CRITEO.label))
        forms.append({name: new.texts(name) for name in new.columns})
    assert forms[0] == forms[1] == forms[2]
    scenario = ranking(run_app, tmp_path, "scenario.json")
    assert ranking(run_app, tmp_path, "ads.json", "user=user.jsonl") == scenario
    assert {candidate["candidate"] for candidate in scenario} == {f"ad {i}" for i in range(12)}
    assert logits(scenario)["ad 3"] == logits(expected)["4"]


@pytest.mark.slow("processes")
def test_bags_of_several_ids(run_app: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = [
        {
            "rating": int(rng.integers(1, 6)),
            "age": int(rng.integers(10, 70)),
            "user": f"u{rng.integers(30)}",
            "genres": [f"g{g}" for g in rng.choice(8, rng.integers(0, 4), replace=False)],
        }
        for _ in range(400)
    ]
    write_csv(tmp_path / "raw.csv", rows)
    (tmp_path / "schema.yaml").write_text(
        'label: {column: rating, rule: ">= 4"}\ndense: [age]\nsparse: [user, {column: genres, separator: "|"}]\n'
    )
    paths = [f"data.raw={tmp_path}/raw.csv", f"data.path={tmp_path}/data", f"data.schema={tmp_path}/schema.yaml"]
    prepare(*paths, "data.split.method=fraction")
    figures = train(run_app, tmp_path, "model=dlrm")
    test = rows[-figures["samples"] :]
    lists = [{key: row[key] for key in ("age", "user", "genres")} for row in test]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lists))
    pyarrow.parquet.write_table(pa.Table.from_pylist(lists), tmp_path / "lists.parquet")
    write_csv(tmp_path / "text.csv", lists)
    ranked = ranking(run_app, tmp_path, "lists.jsonl")
    labels = [int(test[int(candidate["candidate"]) - 1]["rating"] >= 4) for candidate in ranked]
    assert log_loss(labels, [c["probability"] for c in ranked]) == pytest.approx(figures["logloss"], rel=1e-6)
    for name in ("text.csv", "lists.parquet"):
        assert ranking(run_app, tmp_path, name) == ranked, name


@pytest.mark.slow("processes")
def test_ids_are_expanded_as_they_were_in_training(run_app: Command, tmp_path: Path) -> None:
    text = oracle.make_rows(400, seed=4)
    (tmp_path / "raw.tsv").write_bytes(text)
    prepare(f"data.raw={tmp_path}/raw.tsv", f"data.path={tmp_path}/data")
    sizes = f"data.multi_hot.sizes={[1 + i % 3 for i in range(26)]}".replace(" ", "")
    figures = train(run_app, tmp_path, sizes)
    lines = text.decode().splitlines(keepends=True)[-figures["samples"] :]
    (tmp_path / "test.tsv").write_text("".join(lines))
    ranked = ranking(run_app, tmp_path, "test.tsv")
    labels = [int(lines[int(candidate["candidate"]) - 1][0]) for candidate in ranked]
    assert log_loss(labels, [c["probability"] for c in ranked]) == pytest.approx(figures["logloss"], rel=1e-6)


@pytest.mark.medium
def test_values_out_of_vocabulary_are_told(run: dict[str, Any], run_app: Command, tmp_path: Path) -> None:
    fields = (tmp_path / "raw.tsv").read_text().splitlines()[0].split("\t")
    strange = [*fields]
    strange[1 + 13 + 2], strange[1 + 13 + 7] = "deadbee1", "deadbee2"
    (tmp_path / "c.tsv").write_text("".join("\t".join(row) + "\n" for row in (fields, strange)))
    process = run_app("recommend", "run=runs/r", "candidates=c.tsv", "top_k=2", "out=out.csv")
    assert "cat_2 1, cat_7 1" in process.stderr
    assert len(process.stdout.splitlines()) == 3
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert {row["candidate"]: row["out_of_vocabulary"] for row in rows} == {"1": "", "2": "cat_2 cat_7"}


@pytest.mark.parametrize("name", ["c.tsv", "c.jsonl"])
def test_no_candidates_have_an_empty_ranking(run: dict[str, Any], run_app: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert len(run_app("recommend", "run=runs/r", f"candidates={name}", "out=out.csv").stdout.splitlines()) == 1
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1


def test_bad_candidates_are_named(run: dict[str, Any], refused_command: Refusal, tmp_path: Path) -> None:
    good = (tmp_path / "raw.tsv").read_text().splitlines()[:3]
    fields = good[1].split("\t")
    fields[3] = "many"
    (tmp_path / "bad.tsv").write_text("\n".join([good[0], "\t".join(fields), good[2]]) + "\n")
    for overrides, words in {
        ("candidates=bad.tsv",): ("bad.tsv", "row 2", "int_2", "many"),
        ("candidates=bad.tsv", "out=x.png"): ("out=x.png", ".json or .csv"),
        ("candidates=bad.tsv", "top_k=0"): ("top_k=0", "at least 1"),
    }.items():
        line = refused_command("recommend", "run=runs/r", *overrides)
        assert all(word in line for word in words), line
