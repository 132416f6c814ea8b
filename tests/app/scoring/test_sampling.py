"""Probabilities of sampled rows: what is said of them, and their correction in every command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from app.record.documents import read_scores
from app.report.page import run_page
from app.report.read import read_run
from app.runtime.platform import Runtime
from tests.app.conftest import SMALL
from tests.app.in_process import command_here, train_here
from tests.data_prep.conftest import prepare


def metrics_of_all_rows(
    logits: NDArray[np.float32], labels: NDArray[np.float32] | NDArray[np.bool_], kept: float, weight: float = 1.0
) -> dict[str, float]:
    """Metrics by scikit-learn of corrected probabilities over rows whose negatives stand 1 / kept times.

    weight: that of label 1 over that of label 0 in the loss.
    """
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    q = p / (p + (1 - p) * weight / kept)
    counts = np.where(labels == 1, 1, round(1 / kept))
    every, truth = np.repeat(q, counts), np.repeat(labels, counts).astype(int)
    rate = truth.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    bins = np.minimum((every * 15).astype(int), 14)
    gaps = [abs((every - truth)[bins == one].sum()) for one in range(15)]
    return {
        "auc": roc_auc_score(truth, every),
        "pr_auc": average_precision_score(truth, every),
        "logloss": log_loss(truth, every),
        "ne": log_loss(truth, every) / entropy,
        "accuracy": ((every > 0.5) == truth).mean(),
        "ece": sum(gaps) / len(truth),
        "calibration": every.sum() / truth.sum(),
        "base_rate": rate,
        "calibration_of_all_rows": every.sum() / truth.sum(),
        "calibration_of_kept_rows": p.sum() / labels.sum(),
    }


ROWS, KEPT, CLICKS = 4000, 0.25, 0.04
CORRECTED, RUN = "correct_sampling=true", "run=runs/x"


def raw_rows() -> list[str]:
    """Criteo's form; the first category decides the label."""
    rng = np.random.default_rng(7)
    category = rng.integers(0, 9, ROWS)
    labels = rng.random(ROWS) < CLICKS * (0.2 + 0.2 * category)
    integers, others = rng.integers(0, 2, (ROWS, 13)), rng.integers(0, 2, (ROWS, 25))
    return [
        "\t".join([str(int(labels[i])), *map(str, integers[i]), f"{category[i]:08x}", *(f"{x:08x}" for x in others[i])])
        for i in range(ROWS)
    ]


@pytest.fixture(scope="module")
def place(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a quarter of the negatives, and the rows that it was made of."""
    root = tmp_path_factory.mktemp("sampled")
    (root / "raw.tsv").write_text("".join(f"{row}\n" for row in raw_rows()))
    keys = ["data.split.method=fraction", "data.split.held_out=0.5", f"data.path={root}/data"]
    prepare(f"data.raw={root}/raw.tsv", *keys, f"data.sampling.negative_drop_rate={1 - KEPT}")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(root)
        run = [*SMALL, "data.path=data", "run.name=x", "train.epochs=2", "eval.split=test", "record.tensorboard=false"]
        assert train_here(runtime, *run, "optimizer.lr=0.02", "eval.exact_rows=100000") == "completed"
    return root


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def evaluated(runtime: Runtime, capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, Any]:
    capsys.readouterr()
    assert command_here(runtime, "evaluate", *overrides) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.medium
@pytest.mark.parametrize("further", [[], ["exact_rows=10"]])
def test_evaluate_measures_all_rows(further: list[str], runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(runtime, capsys, RUN, "split=test", "keep_scores=100000")
    scores = read_scores(Path("runs/x"), "test")
    expected = metrics_of_all_rows(scores.logits, scores.labels, KEPT)
    plain = evaluated(runtime, capsys, RUN, "split=test", *further)
    corrected = evaluated(runtime, capsys, RUN, "split=test", CORRECTED, *further)
    assert (plain["kept_share"], plain["correct_sampling"], corrected["correct_sampling"]) == (KEPT, False, True)
    assert plain["calibration"] == pytest.approx(expected["calibration_of_kept_rows"], rel=1e-5)
    assert plain["calibration_of_all_rows"] == pytest.approx(expected["calibration_of_all_rows"], rel=1e-5)
    assert plain["base_rate"] == pytest.approx(scores.labels.mean())
    assert plain["auc"] == corrected["auc"]
    for name, value in expected.items():
        if corrected[name] is not None:
            bound = corrected.get("auc_error", 0) if name == "auc" else 0.0
            assert abs(corrected[name] - value) <= 1e-5 * abs(value) + 1.001 * bound, name
    assert corrected["base_rate"] < 0.08 < plain["base_rate"]


@pytest.mark.medium
def test_ranking_gives_corrected_probabilities(
    runtime: Runtime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = raw_rows()[:1000]
    lines = [row.split("\t", 1)[1] for row in raw]
    (tmp_path / "c.tsv").write_text("".join(f"{line}\n" for line in lines))
    rankings = []
    for name, overrides in (("plain", []), ("corrected", [CORRECTED])):
        arguments = ["run=runs/x", f"candidates={tmp_path}/c.tsv", "top_k=null", f"out={tmp_path}/{name}.json"]
        caplog.clear()
        assert command_here(runtime, "recommend", *arguments, *overrides) == 0
        said = any("0.75 of the rows with label 0 were left out" in record.message for record in caplog.records)
        assert said == (not overrides)
        document = json.loads((tmp_path / f"{name}.json").read_text())
        assert (document["kept_share"], document["correct_sampling"]) == (KEPT, bool(overrides))
        rankings.append({each["candidate"]: each for each in document["ranking"]})
    plain, corrected = rankings
    assert list(plain) == list(corrected)  # the same order
    for candidate, each in plain.items():
        p, q = each["probability"], corrected[candidate]["probability"]
        assert q == pytest.approx(p / (p + (1 - p) / KEPT), rel=1e-9)
        assert q < p
    mean = np.mean([each["probability"] for each in corrected.values()])
    assert mean == pytest.approx(np.mean([row[0] == "1" for row in raw]), rel=0.25)  # new rows are of all rows


@pytest.mark.medium
def test_weights_of_classes_are_corrected_in_the_same_way(
    runtime: Runtime, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Beside the sampling: the odds of a click are 5 times too high by the loss, and 4 times by the rows left out."""
    run = [*SMALL, "data.path=data", "run.name=w", f"run.dir={tmp_path}/w", "train.epochs=2", "optimizer.lr=0.02"]
    weights = ["loss=weighted_bce", "loss.class_weights=[2,10]", "eval.split=test", "record.tensorboard=false"]
    assert train_here(runtime, *run, *weights) == "completed"
    sentence = (
        "he loss weighs label 0 by 2 and label 1 by 10 (loss.class_weights), so predicted probabilities are too high"
    )
    assert any(sentence in record.message for record in caplog.records)
    assert sentence in run_page(read_run(tmp_path / "w"))
    here = [f"run={tmp_path}/w", "split=test"]
    plain = evaluated(runtime, capsys, *here, "keep_scores=100000")
    corrected = evaluated(runtime, capsys, *here, CORRECTED)
    assert corrected["class_weights"] == [2, 10]
    scores = read_scores(tmp_path / "w", "test")
    expected = metrics_of_all_rows(scores.logits, scores.labels, KEPT, weight=5)
    assert plain["calibration"] == pytest.approx(expected["calibration_of_kept_rows"], rel=1e-5)
    for name, value in expected.items():
        assert corrected[name] == pytest.approx(value, rel=1e-5), name
    text = "".join(f"{row.split(chr(9), 1)[1]}\n" for row in raw_rows()[:100])
    (tmp_path / "c.tsv").write_text(text)
    shown = []
    for overrides in ([], [CORRECTED]):
        out = [f"candidates={tmp_path}/c.tsv", "top_k=null", f"out={tmp_path}/r.json"]
        assert command_here(runtime, "recommend", f"run={tmp_path}/w", *out, *overrides) == 0
        shown.append([each["logit"] for each in json.loads((tmp_path / "r.json").read_text())["ranking"]])
    np.testing.assert_allclose(shown[1], np.array(shown[0]) - np.log(5 / KEPT), rtol=0, atol=1e-12)
