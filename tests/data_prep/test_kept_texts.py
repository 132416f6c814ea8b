"""The values of an own table's categories from end to end: their texts by id, collisions, and what is left out."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_prep.config import DataConfig, PrepConfig
from data_prep.dataset import spelling
from data_prep.dataset.format import load_manifest
from data_prep.dataset.spelling import text_hash
from data_prep.lookup import VocabularyTexts
from data_prep.verify import main, verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import Capture, prepare, sums
from tests.data_prep.tables import paths, write
from tests.error_lines import refused

NAMES = ["", "Été", 'a "b"', "7", "007", *(f"user-{i}" for i in range(30))]
TAGS = ["x", "y", "東京", "7"]


@pytest.fixture
def table(tmp_path: Path) -> list[list[str]]:
    """Rows of label, user, tags; the files are beside them."""
    rng = np.random.default_rng(4)
    users = [NAMES[i] for i in rng.zipf(1.4, 300) % len(NAMES)]
    rows = [[str(rng.integers(2)), user, "|".join(rng.choice(TAGS, rng.integers(0, 4)))] for user in users]
    columns = zip(*rows, strict=True)
    write(tmp_path / "rows.csv", dict(zip(("clicked", "user", "tags"), columns, strict=True)))
    return rows


def make(directory: Path, *overrides: str, name: str = "out") -> Path:
    schema = "label: clicked\nsparse: [user, {column: tags, separator: '|'}]\n"
    keys = paths(directory, schema, out=name)
    prepare(*keys, "data.split.method=fraction", "data.chunk_bytes=1500", *overrides)
    return directory / name


def test_numbers_that_no_id_has(tmp_path: Path, table: list[list[str]]) -> None:
    texts = VocabularyTexts(make(tmp_path), "user")
    for number in (0, len(texts) + 1):
        with pytest.raises(IndexError):
            texts[number]


@pytest.mark.medium
def test_values_are_named_when_a_dataset_is_verified(tmp_path: Path, table: list[list[str]], capsys: Capture) -> None:
    root = make(tmp_path)
    assert main(PrepConfig(data=DataConfig(path=str(root)))) == 0
    _, users, tags = capsys.readouterr().out.splitlines()
    train = table[: load_manifest(root).splits["train"].rows]
    counts = {
        "user": Counter(user for _, user, _ in train),
        "tags": Counter(tag for *_, field in train for tag in field.split("|") if tag),
    }
    for line, (name, of_column) in zip((users, tags), counts.items(), strict=True):
        ranked = sorted(of_column, key=lambda text: (-of_column[text], oracle.text_value(text)))
        listing = ", ".join(map(repr, ranked[:5])) + (", …" if len(ranked) > 5 else "")
        assert line == f"{name}: {len(ranked)} values by frequency: {listing}"
    without = make(tmp_path, "data.keep_texts=false", name="without")
    assert main(PrepConfig(data=DataConfig(path=str(without)))) == 0
    line = "data.keep_texts=false: the texts of the columns' values are not in the dataset"
    assert capsys.readouterr().out.splitlines()[1:] == [line]


def test_texts_may_be_left_out(tmp_path: Path, table: list[list[str]]) -> None:
    with_texts, without = make(tmp_path), make(tmp_path, "data.keep_texts=false", name="without")
    verify_dataset(without)
    assert sorted(path.name for path in (without / "vocab").iterdir()) == ["tags.npy", "user.npy"]
    assert b"user-" not in b"".join(path.read_bytes() for path in without.rglob("*.npy"))
    assert sums(without).items() <= sums(with_texts).items()
    refused("texts are not readable", VocabularyTexts, without, "user")
    refused("keep_texts is False there, True here", make, tmp_path, "data.keep_texts=true", name="without")
    hashed = ["data.keep_texts=false", "data.encoding=hash", "data.max_ind_range=9"]
    refused(r"^data\.keep_texts: has no effect with data\.encoding=hash", make, tmp_path, *hashed, name="hash")


def test_changed_texts_are_found(tmp_path: Path, table: list[list[str]]) -> None:
    root = make(tmp_path)
    path = root / "vocab/user.texts.npy"
    path.write_bytes(path.read_bytes().replace(b"user-1", b"user-X", 1))
    manifest = json.loads((root / "manifest.json").read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest["encoding"]["vocabulary"]["user"]["texts"]["texts"]["sha256"] = digest
    (root / "manifest.json").write_text(json.dumps(manifest))
    refused(r"user\.texts\.npy: are not the texts of the values in user\.npy", verify_dataset, root)


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1500])  # all in one chunk, or in several that are merged
def test_two_texts_of_one_value_end_the_job(
    tmp_path: Path, table: list[list[str]], monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    hashed = text_hash
    monkeypatch.setattr(spelling, "text_hash", lambda text: hashed(text)[:1] * 8)  # 8 bits
    rows = "".join(f"{i % 2},name {i},\n" for i in range(300))
    (tmp_path / "rows.csv").write_text(f"clicked,user,tags\n{rows}")
    message = r"column user: 'name \d+' and 'name \d+' have the same value"
    line = refused(message, make, tmp_path, f"data.chunk_bytes={chunk_bytes}")
    first, second = line.split("'")[1:4:2]
    assert first != second
    assert hashed(first.encode())[:1] == hashed(second.encode())[:1]
    assert not (tmp_path / "out" / "manifest.json").exists()
    make(tmp_path, "data.encoding=hash", "data.max_ind_range=9")  # where values share ids anyway
