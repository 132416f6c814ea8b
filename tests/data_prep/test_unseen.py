"""Held-out values that train does not have, and the defaults of a user's own table, which avoid losing anything."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from data_prep.config import resolve_rules
from data_prep.dataset.format import Manifest, unseen_sentence
from data_prep.dataset.kinds import misleading_sentences
from data_prep.dataset.options import DenseTransform, SplitMethod
from data_prep.lookup import transform_dense
from tests.data_prep import oracle
from tests.data_prep.conftest import Capture, config, load_split, prepare


def ratings(directory: Path, *overrides: str, users: int = 60, each: int = 10) -> tuple[Manifest, NDArray[np.int64]]:
    """A dataset of ratings sorted by user, as MovieLens publishes them, and its raw columns user, film, rating."""
    rng = np.random.default_rng(3)
    rows = np.array([(user, rng.integers(9), rng.integers(1, 6)) for user in range(users) for _ in range(each)])
    text = "userId,movieId,rating\n" + "".join(f"{user},{film},{rating}\n" for user, film, rating in rows)
    (directory / "ratings.csv").write_text(text)
    (directory / "ratings.yaml").write_text("label: rating >= 4\nsparse: [userId, movieId]\n")
    paths = [f"data.raw={directory}/ratings.csv", f"data.schema={directory}/ratings.yaml"]
    return prepare(*paths, f"data.path={directory}/out", *overrides), rows


FRACTION = "data.split.method=fraction"
HASH = ("data.encoding=hash", "data.max_ind_range=1000")


@pytest.mark.medium
@pytest.mark.parametrize("overrides", [(FRACTION,), (FRACTION, *HASH)], ids=["vocabulary", "hash"])
def test_a_column_of_new_values_is_named(tmp_path: Path, overrides: tuple[str, ...], capsys: Capture) -> None:
    manifest, rows = ratings(tmp_path, *overrides)
    train = manifest.splits["train"].rows
    values = rows[:, 0].astype(np.int64)  # a whole number is its own value
    values %= 1000 if overrides[1:] else 2**32  # hashed values may meet those of others
    share = float(np.mean(~np.isin(values[train:], values[:train])))
    assert share > 0.5
    assert manifest.extra["unseen_in_train"] == {"userId": pytest.approx(share), "movieId": 0.0}
    sentence = unseen_sentence(manifest)
    assert sentence is not None
    assert sentence.startswith(f"of the values of val and test these shares are not in train: userId ({share:.0%});")
    assert "data.split.method=random" in sentence
    assert f"{tmp_path}/out: warning: {sentence}\n" in capsys.readouterr().err
    manifest, _ = ratings(tmp_path, *overrides[1:], "data.overwrite=true")
    assert manifest.encoding["split"] == "random"
    assert unseen_sentence(manifest) is None
    assert max(manifest.extra["unseen_in_train"].values()) < 0.05


@pytest.mark.medium
def test_a_column_whose_values_occur_once_is_named_whatever_the_split(tmp_path: Path) -> None:
    manifest, _ = ratings(tmp_path, users=400, each=1)
    sentence = unseen_sentence(manifest)
    assert sentence is not None
    assert "userId (100%)" in sentence
    assert "no split helps" in sentence
    manifest, _ = ratings(tmp_path, FRACTION, "data.overwrite=true", users=400, each=1)
    assert "leave a column whose values occur once out of data.schema" in str(unseen_sentence(manifest))


def test_values_that_share_an_id_are_named(tmp_path: Path, capsys: Capture) -> None:
    manifest, rows = ratings(tmp_path, FRACTION, "data.max_ind_range=20")
    frame = pd.DataFrame(rows, columns=["userId", "movieId", "rating"])
    counts = frame[: manifest.splits["train"].rows].userId.value_counts()
    expected = 1 - counts[:19].sum() / counts.sum()
    shares = manifest.extra["shared_ids"]["unknown_share"]
    assert shares == {"userId": pytest.approx(expected), "movieId": 0.0}
    (sentence,) = misleading_sentences(manifest.extra)
    assert sentence.startswith(
        f"of train's values these shares have the id of unknown values: userId ({shares['userId']:.0%})"
    )
    assert f"{tmp_path}/out: warning: {sentence}\n" in capsys.readouterr().err
    manifest, _ = ratings(tmp_path, "data.encoding=hash", "data.max_ind_range=20", "data.overwrite=true")
    per_row = {name: frame[name].nunique() / (frame[name] % 20).nunique() for name in ("userId", "movieId")}
    assert manifest.extra["shared_ids"]["values_per_row"] == pytest.approx(per_row)
    assert misleading_sentences(manifest.extra) == [
        "values share the rows of their table, on average userId (3.0); raise data.max_ind_range"
    ]


@pytest.mark.parametrize("encoding", ["hash", "torchrec"])
def test_values_of_criteo_that_share_an_id_are_counted(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(500, seed=1, values=60))
    keys = [f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/out", "data.split.method=fraction"]
    manifest = prepare(*keys, f"data.encoding={encoding}", "data.max_ind_range=20", "data.frequency_threshold=1")
    frame = pd.read_csv(tmp_path / "rows.tsv", sep="\t", header=None, dtype=str, keep_default_na=False).iloc[:, 14:]
    for (_, column), mean in zip(frame.items(), manifest.extra["shared_ids"]["values_per_row"].values(), strict=True):
        values = np.unique([int(text or "0", 16) for text in column])
        assert mean == len(values) / (len(np.unique(values % 20)) if encoding == "hash" else 20)


def test_rare_values_do_not_count_as_unseen(tmp_path: Path) -> None:
    """With a threshold above every user's rows they have no id in train either; movies are common."""
    manifest, _ = ratings(tmp_path, "data.frequency_threshold=12")
    assert manifest.extra["unseen_in_train"] == {"userId": 0.0, "movieId": 0.0}


def test_the_defaults_follow_from_the_schema_alone() -> None:
    """Not from the number of files; Criteo's stay as published."""
    for files in (1, 3):
        table_rules = resolve_rules(config("data.path=x", "data.raw=y", "data.schema=z"), files)
        assert (table_rules.split, table_rules.dense.value) == (SplitMethod.random, "signed_log1p")
    criteo = [resolve_rules(config("data.path=x", "data.raw=y"), files) for files in (1, 3)]
    assert [rules.split for rules in criteo] == [SplitMethod.fraction, SplitMethod.last_day]
    assert {rules.dense.value for rules in criteo} == {"log1p"}


def test_counts_have_the_same_values_as_before() -> None:
    counts = np.array([[0.0, 1.0, 2.5, 65_536.0, 1e9]])
    new, old = (transform_dense(counts, way) for way in (DenseTransform.signed_log1p, DenseTransform.log1p))
    np.testing.assert_array_equal(new, old)


def test_unknown_values_are_not_counted_where_the_cap_gives_others_their_id(tmp_path: Path) -> None:
    """Ids are taken modulo the cap, so that id 1 is of rare values and of others too."""
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(80, seed=day))
    raw = [f"data.raw={tmp_path}/day_?", "data.encoding=torchrec", "data.frequency_threshold=3"]
    capped = prepare(*raw, f"data.path={tmp_path}/capped", "data.max_ind_range=20")
    assert (load_split(tmp_path / "capped", "train")[2] == 1).any()
    assert capped.extra["out_of_vocabulary"] is None
    whole = prepare(*raw, f"data.path={tmp_path}/whole")
    counts = (load_split(tmp_path / "whole", "train")[2] == 1).sum(axis=0)
    assert [*whole.extra["out_of_vocabulary"]["train"].values()] == counts.tolist()
