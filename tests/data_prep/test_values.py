"""Values of columns: transforms, texts by id, those that train lacks, and warnings where nothing can be learned."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from data_prep.codec.convert import convert
from data_prep.codec.values import Form, RawRows, text_hash
from data_prep.config import DataConfig, PrepConfig
from data_prep.dataset.format import Manifest, load_manifest, unseen_sentence
from data_prep.dataset.kinds import misleading_sentences
from data_prep.dataset.options import Table
from data_prep.lookup import VocabularyTexts
from data_prep.verify import main, verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import Capture, prepare, sums
from tests.data_prep.tables import ALLOW, paths, write
from tests.error_lines import refused

NAMES = ["", "Été", 'a "b"', "7", "007", *(f"user-{i}" for i in range(30))]
TAGS = ["x", "y", "東京", "7"]


@pytest.fixture
def names(tmp_path: Path) -> list[list[str]]:
    rng = np.random.default_rng(4)
    users = [NAMES[i] for i in rng.zipf(1.4, 300) % len(NAMES)]
    rows = [[str(rng.integers(2)), user, "|".join(rng.choice(TAGS, rng.integers(0, 4)))] for user in users]
    columns = zip(*rows, strict=True)
    write(tmp_path / "rows.csv", dict(zip(("clicked", "user", "tags"), columns, strict=True)))
    return rows


def make_named(directory: Path, *overrides: str, name: str = "out") -> Path:
    schema = "label: clicked\nsparse: [user, {column: tags, separator: '|'}]\n"
    keys = paths(directory, schema, out=name)
    prepare(*keys, "data.split.method=fraction", "data.chunk_bytes=1500", *overrides)
    return directory / name


@pytest.mark.medium
def test_verification_names_values(tmp_path: Path, names: list[list[str]], capsys: Capture) -> None:
    root = make_named(tmp_path)
    assert main(PrepConfig(data=DataConfig(path=str(root)))) == 0
    _, users, tags = capsys.readouterr().out.splitlines()
    train = names[: load_manifest(root).splits["train"].rows]
    counts = {
        "user": Counter(user for _, user, _ in train),
        "tags": Counter(tag for *_, field in train for tag in field.split("|") if tag),
    }
    for line, (name, of_column) in zip((users, tags), counts.items(), strict=True):
        ranked = sorted(of_column, key=lambda text: (-of_column[text], oracle.text_value(text)))
        listing = ", ".join(map(repr, ranked[:5])) + (", …" if len(ranked) > 5 else "")
        assert line == f"{name}: {len(ranked)} values by frequency: {listing}"
    without = make_named(tmp_path, "data.keep_texts=false", name="without")
    assert main(PrepConfig(data=DataConfig(path=str(without)))) == 0
    line = "data.keep_texts=false: the texts of the columns' values are not in the dataset"
    assert capsys.readouterr().out.splitlines()[1:] == [line]


def test_texts_may_be_left_out(tmp_path: Path, names: list[list[str]]) -> None:
    with_texts, without = make_named(tmp_path), make_named(tmp_path, "data.keep_texts=false", name="without")
    verify_dataset(without)
    assert sorted(path.name for path in (without / "vocab").iterdir()) == ["tags.npy", "user.npy"]
    assert b"user-" not in b"".join(path.read_bytes() for path in without.rglob("*.npy"))
    assert sums(without).items() <= sums(with_texts).items()
    refused("texts are not readable", VocabularyTexts, without, "user")
    refused("keep_texts is False there, True here", make_named, tmp_path, "data.keep_texts=true", name="without")
    hashed = ["data.keep_texts=false", "data.encoding=hash", "data.max_ind_range=9"]
    refused(r"^data\.keep_texts: has no effect with data\.encoding=hash", make_named, tmp_path, *hashed, name="hash")


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1500])  # all in one chunk, or in several that are merged
def test_two_texts_of_one_value_end_the_job(
    tmp_path: Path, names: list[list[str]], monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    hashed = text_hash
    monkeypatch.setattr("data_prep.codec.values.text_hash", lambda text: hashed(text)[:1] * 8)  # 8 bits
    rows = "".join(f"{i % 2},name {i},\n" for i in range(300))
    (tmp_path / "rows.csv").write_text(f"clicked,user,tags\n{rows}")
    message = r"column user: 'name \d+' and 'name \d+' have the same value"
    line = refused(message, make_named, tmp_path, f"data.chunk_bytes={chunk_bytes}")
    first, second = line.split("'")[1:4:2]
    assert first != second
    assert hashed(first.encode())[:1] == hashed(second.encode())[:1]
    assert not (tmp_path / "out" / "manifest.json").exists()
    make_named(tmp_path, "data.encoding=hash", "data.max_ind_range=9")  # where values share ids anyway


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
IN_1000 = ("data.encoding=hash", "data.max_ind_range=1000")


@pytest.mark.medium
@pytest.mark.parametrize("overrides", [(FRACTION,), (FRACTION, *IN_1000)], ids=["vocabulary", "hash"])
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


ALL_USES = "label: label\ndense: [price]\nsparse: [user, item, {column: tags, separator: '|'}]\n"
Rows = Sequence[tuple[int | str, ...]]
HASHED = ("data.encoding=hash", "data.max_ind_range=50")


def warned(capsys: Capture, directory: Path, rows: Rows, *overrides: str, schema: str = ALL_USES) -> list[str]:
    """The warnings while a table of (label, price, user, item, tags) is prepared."""
    text = "label,price,user,item,tags\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (directory / "rows.csv").write_text(text)
    capsys.readouterr()
    prepare(*paths(directory, schema), "data.split.method=fraction", *overrides)
    prefix = f"{directory}/out: warning: "
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def good(count: int, label: Callable[..., Any] = lambda i: i % 2) -> Rows:
    return [(label(i), i % 5, f"u{i % 7}", f"i{i % 3}", "a|b" if i % 4 else "") for i in range(count)]


@pytest.mark.medium
@pytest.mark.parametrize("overrides", [(), pytest.param(HASHED, marks=pytest.mark.slow)], ids=["vocabulary", "hash"])
def test_each_kind(capsys: Capture, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    assert warned(capsys, tmp_path, good(300), *overrides) == []
    more = [*overrides, "data.overwrite=true"]

    (line,) = warned(capsys, tmp_path, good(700, lambda i: int(i >= 500)), *more)  # 600 of them are train's
    assert line.startswith("label rates differ (train 0.1667, val 1.0000, test 1.0000): only one class in val and test")
    assert line.endswith("if the rows are sorted by label, set data.split.method=random")
    assert warned(capsys, tmp_path, good(700, lambda i: int(i >= 500)), *more, "data.split.method=random") == []

    (line,) = warned(capsys, tmp_path, good(2100, lambda i: i % 10 == 0 if i < 1800 else i % 10 != 0), *more)
    assert line.startswith("label rates differ (train 0.1000, val 0.9000, test 0.9000): if the rows are sorted")

    for only in (0, 1):
        (line,) = warned(capsys, tmp_path, good(100, lambda i, only=only: only), *more, ALLOW)
        assert line.startswith(f"every label is {only}: there is nothing to learn")

    rows = [(label, "", user, "same", tags) for label, _, user, _, tags in good(300)]
    (line,) = warned(capsys, tmp_path, rows, *more)
    assert line.startswith("the same value, or none, in every row of price, item: nothing can be learned")

    lines = warned(capsys, tmp_path, good(1), *more, ALLOW)
    assert len(lines) == 3
    assert lines[0].startswith("test has no rows")
    assert lines[1].startswith("every label is 0")


@pytest.mark.parametrize(("forms", "texts"), [(Form.PLAIN, ["3", "4"]), (Form.POINT, ["3.0", "4.0"])])
def test_typed_integers_are_spelled_as_the_dataset_s(forms: Form, texts: list[str]) -> None:
    table: Any = Table(",", True, "label", (), ("a",), None, ("label", "a"))
    rows = RawRows({"a": pa.array([3, 4])}, 2, str)
    [column] = convert(rows, table, forms={"a": Form.TEXT | forms}).categories
    assert column.values.to_pylist() == texts
