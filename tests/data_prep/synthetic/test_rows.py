import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep import synthetic as rows_module
from data_prep import synthetic as teacher_module
from data_prep.config import SyntheticConfig
from data_prep.lookup import encode_dense
from data_prep.parsing.criteo import MISSING_INTEGER, parse_bytes
from data_prep.synthetic import (
    KAGGLE_CARDINALITIES,
    Teacher,
    calibrated_teacher,
    category_value,
    criteo_columns,
    day_rows,
    day_text,
    draw_rows,
    generate_days,
    make_teacher,
)
from tests.data_prep.conftest import REFERENCE, SPLITS, load_split, prepare, run, sums
from tests.error_lines import refused

SMALL = SyntheticConfig(rows=40_001, days=2, seed=7, max_cardinality=500)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return calibrated_teacher(SMALL, 0)


def test_the_same_bytes_for_any_number_of_threads(teacher: Teacher) -> None:
    one = list(day_text(SMALL, teacher, 1, threads=1))
    three = list(day_text(SMALL, teacher, 1, threads=3))
    assert [text for text, _ in one] == [text for text, _ in three]
    assert len(one) == 2
    assert sum(len(rows.labels) for _, rows in one) == day_rows(SMALL, 1) == 20_000
    other_seed, _ = next(iter(day_text(replace(SMALL, seed=8), teacher, 1, threads=1)))
    other_day, _ = next(iter(day_text(SMALL, teacher, 0, threads=1)))
    assert len({one[0][0], other_seed, other_day}) == 3


def test_rows_are_what_was_drawn(teacher: Teacher) -> None:
    rows = draw_rows(teacher, SMALL.seed, 0, 0, 300)
    text, _ = next(iter(day_text(replace(SMALL, rows=600), teacher, 0, threads=1)))
    block = parse_bytes(text, "day_0")
    expected = np.where(rows.integer_present, rows.integers, MISSING_INTEGER)
    np.testing.assert_array_equal(block.dense, expected)
    for column in range(26):
        ranks = rows.ranks[:, column]
        values = [int(category_value(rank, teacher.salt[column])) for rank in ranks]
        np.testing.assert_array_equal(block.sparse[:, column], np.where(rows.category_present[:, column], values, 0))
        assert len(set(values)) == len(set(ranks.tolist()))


def test_logits_follow_from_the_columns(teacher: Teacher) -> None:
    """The teacher's formula, written out in NumPy."""
    rows = draw_rows(teacher, 3, 1, 2, 200)
    log = encode_dense(np.where(rows.integer_present, rows.integers, MISSING_INTEGER)).astype(np.float64)
    score = np.clip((log - teacher.log_mean) / teacher.log_deviation, -2.5, 2.5)
    index = teacher.first + rows.ranks
    present = rows.category_present
    effects = np.where(present, teacher.main[index], 0).sum(axis=1)
    vectors = [
        np.where(present[:, column, None], teacher.factors[start + rows.ranks[:, column]], 0).astype(np.float64)
        for column, start in zip(teacher.interacting, teacher.first_factor, strict=True)
    ]
    pairs, triples = np.zeros(200), np.zeros(200)
    for i, j in combinations(range(len(vectors)), 2):
        pairs += np.einsum("ra,ab,rb->r", vectors[i], teacher.pair_forms[i, j], vectors[j])
    for i, j, k in combinations(range(len(vectors)), 3):
        triples += np.einsum("ra,rb,rc,abc->r", vectors[i], vectors[j], vectors[k], teacher.triple_forms[i, j, k])
    expected = teacher.intercept + score @ teacher.slope + effects + pairs + triples
    np.testing.assert_allclose(rows.logits, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(pairs).max() > 0.1
    assert np.abs(triples).max() > 0.1


def test_ranks_follow_zipf() -> None:
    uniform = np.random.default_rng(0).random((200_000, 1), np.float32)
    ranks = np.empty(uniform.shape, np.int32)
    teacher_module.category_ranks(uniform, np.array([1000]), np.array([1.2]), ranks)
    assert ranks.min() == 0
    assert ranks.max() == 999
    counts = np.bincount(ranks[:, 0], minlength=1000) / len(ranks)
    bounds = np.arange(1, 1002.0) ** -0.2
    np.testing.assert_allclose(counts[:20], ((bounds[:-1] - bounds[1:]) / (1 - bounds[-1]))[:20], rtol=0.05)


@pytest.mark.slow("examples")
def test_columns_look_like_criteos() -> None:
    """Missing values, integers' distributions and how often two rows share a category, against 1,999 real rows."""
    real = json.loads((REFERENCE / "criteo_statistics.json").read_text())
    rows = draw_rows(calibrated_teacher(SyntheticConfig(max_cardinality=max(KAGGLE_CARDINALITIES)), 0), 0, 0, 0, 10_000)
    for column in range(13):
        criteo_column = real["integers"][column]
        present = rows.integer_present[:, column]
        assert present.mean() == pytest.approx(1 - teacher_module.INTEGER_MISSING[column], abs=0.02)
        assert present.mean() == pytest.approx(criteo_column["present"], abs=0.04)
        integers = np.sort(rows.integers[present, column])
        below = np.searchsorted(integers, criteo_column["values"], side="right") / len(integers)
        assert np.abs(below - criteo_column["cumulative"]).max() < 0.16, f"integer {column}"
    for column in range(26):
        criteo_column = real["categories"][column]
        present = rows.category_present[:, column]
        assert present.mean() == pytest.approx(1 - teacher_module.CATEGORY_MISSING[column], abs=0.02)
        assert present.mean() == pytest.approx(criteo_column["present"], abs=0.06)
        chance = chance_to_share(rows.ranks[present, column])
        assert chance == pytest.approx(criteo_column["chance_to_share"], rel=0.25), f"category {column}"
    assert (rows.integers < 0).any(axis=0).tolist() == [column == 1 for column in range(13)]


def chance_to_share(values: NDArray[np.int32]) -> float:
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))


def test_cardinalities_are_criteos_or_scaled_down() -> None:
    assert criteo_columns(10_131_227).cardinality.tolist() == list(KAGGLE_CARDINALITIES)
    scaled = criteo_columns(1000).cardinality
    assert scaled.max() == 1000
    assert scaled[8] == 1  # three values: the square root of 3 in 10 million
    assert (scaled <= KAGGLE_CARDINALITIES).all()
    order = np.argsort(KAGGLE_CARDINALITIES, kind="stable")
    assert (np.diff(scaled[order]) >= 0).all()


@pytest.mark.medium
def test_drift_turns_the_effects() -> None:
    for drift, expected in ((0.0, 1.0), (0.1, np.cos(0.3)), (np.pi / 6, 0.0)):
        teachers = [calibrated_teacher(replace(SMALL, drift=drift), day) for day in (0, 3)]
        for name in ("main", "factors"):
            first, later = (getattr(teacher, name).ravel() for teacher in teachers)
            assert np.corrcoef(first, later)[0, 1] == pytest.approx(expected, abs=0.15)


@pytest.mark.slow("examples")
@pytest.mark.parametrize("encoding", ["hash", "torchrec_fixed"])
def test_direct_gives_the_rows_that_text_gives(tmp_path: Path, encoding: str) -> None:
    """Split by split the same rows and the same truth, though cut into other shards; whatever makes them."""
    hashed, drawn = ["data.max_ind_range=1000"], ["data.sampling.negative_drop_rate=0.5"]
    overrides = [f"data.encoding={encoding}", *(hashed if encoding == "hash" else drawn)]
    overrides += ["data.source=synthetic", "data.synthetic.rows=50000", "data.synthetic.days=2"]
    overrides += ["data.chunk_bytes=4000000", "data.synthetic.max_cardinality=300"]
    text = prepare(f"data.path={tmp_path}/text", *overrides)
    directly = ["data.synthetic.direct=true", *overrides]
    direct = prepare(f"data.path={tmp_path}/direct", *directly)
    assert run(f"data.path={tmp_path}/two", "data.workers=2", *directly).returncode == 0
    assert sums(tmp_path / "two") == sums(tmp_path / "direct")
    assert not (tmp_path / "direct" / "raw").exists()
    assert direct.num_embeddings == text.num_embeddings
    assert direct.extra["bayes"] == text.extra["bayes"]
    for split in SPLITS:
        of_direct, of_text = (load_split(tmp_path / name, split) for name in ("direct", "text"))
        for direct_array, text_array in zip(of_direct, of_text, strict=True):
            np.testing.assert_array_equal(direct_array, text_array)
    assert prepare(f"data.path={tmp_path}/direct", *directly) == direct


@pytest.mark.slow("examples")
def test_days_are_written_where_raw_says_and_kept(tmp_path: Path) -> None:
    paths = generate_days(SMALL, tmp_path / "out", str(tmp_path / "days"))
    assert paths == [f"{tmp_path}/days/day_0.tsv", f"{tmp_path}/days/day_1.tsv"]
    before = (tmp_path / "days" / "day_1.tsv").stat().st_mtime_ns
    assert generate_days(SMALL, tmp_path / "out", str(tmp_path / "days")) == paths
    assert (tmp_path / "days" / "day_1.tsv").stat().st_mtime_ns == before
    assert json.loads((tmp_path / "days" / "synthetic.json").read_text())["config"]["seed"] == 7
    assert prepare(f"data.raw={tmp_path}/days", f"data.path={tmp_path}/out").rows == SMALL.rows


def test_foreign_days_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "day_0.tsv").write_text("mine\n")
    refused("were not generated", generate_days, SMALL, tmp_path / "out", str(tmp_path))
    assert (tmp_path / "day_0.tsv").read_text() == "mine\n"
    refused("not a directory", generate_days, SMALL, tmp_path / "out", str(tmp_path / "day_0.tsv"))


def test_effects_that_are_all_the_same_are_left_out() -> None:
    """Nothing is divided by a deviation of 0: logits stay in a range that probabilities show."""
    config = SyntheticConfig(max_cardinality=3)
    columns = criteo_columns(3)._replace(missing=np.zeros(26, np.float32))
    teacher = make_teacher(config, columns, 0)
    sample = draw_rows(teacher, 0, 0, rows_module.CALIBRATION_BLOCK, 1 << 12)
    logits = rows_module.logits_of(rows_module.calibrate(teacher, config, sample), sample)
    assert 0.5 < logits.std() < 2
    assert (1 / (1 + np.exp(-logits))).mean() == pytest.approx(config.click_rate, abs=1e-3)


@pytest.mark.slow("examples")
def test_an_interrupted_generation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SyntheticConfig(rows=3_000, days=3)
    whole = generate_days(settings, tmp_path / "whole", None)
    replace, calls = Path.replace, []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_days(settings, tmp_path / "cut", None)
    days = generate_days(settings, tmp_path / "cut", None)
    assert [Path(day).read_bytes() for day in days] == [Path(day).read_bytes() for day in whole]
