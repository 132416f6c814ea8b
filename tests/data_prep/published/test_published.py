"""Splits of published sets against those that the authors' own programs write."""

import functools
import hashlib
import http.server
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from data_prep import published
from tests.error_lines import refused

# Of the files below by src/preprocess.py and src/data_loader.py of hwwang55/KGCN at 2363ca2, as label,user,item.
KGCN = {
    "train": "a05133ec8c11fc6701dfff8a18332903c765310e96fa12c0053b558cb277f3b3",
    "val": "50c1cbc97470cbda5fc822414a5b6803b4f49734bc0d82780a428943c4e94e1f",
    "test": "7806ba8789d329fc969da8fd31adaf6411ac149c5cacf5b9680863eaeefa1ca4",
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Files in the form of KGCN's: twelve users, forty artists, and two that have no entity."""
    draw, directory = random.Random(3), tmp_path / "raw"
    directory.mkdir()
    artists = [str(100 + 7 * i) for i in range(40)]
    (directory / "item_index2entity_id.txt").write_text("".join(f"{a}\t/m/{i}\n" for i, a in enumerate(artists)))
    lines = ["userID\tartistID\tweight"]
    for user in range(2, 14):
        user_artists = draw.sample([*artists, "5", "6"], draw.randint(2, 9))
        lines += [f"{user}\t{artist}\t{draw.randint(1, 999)}" for artist in user_artists]
    (directory / "user_artists.dat").write_text("\n".join(lines) + "\n")
    return directory


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.fixture
def small(raw: Path) -> Iterator[published.PublishedSet]:
    """The set of those files, served as a mirror serves them."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(raw))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, files = f"http://127.0.0.1:{server.server_port}/", digests(raw)
        names = list(published.SETS["kgcn_lastfm"].files)
        yield replace(published.SETS["kgcn_lastfm"], url=url, files={name: files[name] for name in names}, splits=KGCN)
        server.shutdown()


def test_fetched_files_become_the_rows_that_kgcn_draws(small: published.PublishedSet, tmp_path: Path) -> None:
    paths = published.write_splits(small, tmp_path / "fetched", tmp_path / "out")
    assert digests(tmp_path / "out") == {f"{split}.csv": sha256 for split, sha256 in KGCN.items()}
    assert sorted(paths) == sorted((tmp_path / "out").iterdir())
    assert {"user_artists.dat", "item_index2entity_id.txt"} <= set(digests(tmp_path / "fetched"))


def test_each_user_has_as_many_negatives_as_positives(raw: Path) -> None:
    splits = published.kgcn_lastfm(raw / "user_artists.dat", raw / "item_index2entity_id.txt")
    rows = [row for split in splits.values() for row in list(split)[1:]]
    assert len({(user, item) for _, user, item in rows}) == len(rows)
    for label in (0, 1):
        users = Counter(user for row_label, user, _ in rows if row_label == label)
        assert users == Counter(user for row_label, user, _ in rows if row_label == 1)


def test_pairs_of_the_test_file_leave_train_and_items_are_numbered_as_they_appear(tmp_path: Path) -> None:
    """Against loops over dictionaries: drawn pairs in the order of users, of each the last one held out."""
    draw, films = random.Random(5), [str(film) for film in range(100, 160)]
    pairs = [(user, film) for user in range(1, 13) for film in draw.sample(films, draw.randint(2, 30))]
    columns = {"userID": [str(user) for user, _ in pairs], "movieID": [film for _, film in pairs]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "ratings.parquet")
    items: dict[str, int] = {}
    numbered = [(user - 1, items.setdefault(film, len(items))) for user, film in pairs]
    held_out = dict(numbered)
    negatives = {user: [draw.randrange(len(items)), item] for user, item in held_out.items()}
    ratings = "".join(f"{user}\t{item}\t5\t97830{user}\n" for user, item in held_out.items())
    (tmp_path / "test.rating").write_text(ratings)
    lines = [f"({user},{held_out[user]})\t{one}\t{other}\n" for user, (one, other) in negatives.items()]
    (tmp_path / "test.negative").write_text("".join(lines))
    paths = (tmp_path / name for name in ("ratings.parquet", "test.rating", "test.negative"))
    splits = {name: list(rows)[1:] for name, rows in published.ncf_movielens_1m(*paths).items()}
    assert splits["train"] == [(1, *pair) for pair in numbered if pair not in set(held_out.items())]
    candidates = {user: [held_out[user], *negatives[user]] for user in held_out}
    expected = [(int(not i), user, int(item)) for user, row in candidates.items() for i, item in enumerate(row)]
    assert splits["test"] == expected


def test_another_file_or_split_is_refused(small: published.PublishedSet, raw: Path, tmp_path: Path) -> None:
    other = replace(small, splits={**KGCN, "train": "0" * 64})
    message = r"train.csv: other rows than those of the published split"
    refused(message, published.write_splits, other, raw, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    with open(raw / "user_artists.dat", "a", encoding="utf-8") as file:
        file.write("2\t100\t1\n")
    message = r"user_artists.dat: sha256 .* where the published file has .*; delete it"
    refused(message, published.write_splits, small, raw, tmp_path / "other")


@pytest.mark.medium
def test_a_set_without_a_mirror_or_a_name_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "data_prep.published", f"out={tmp_path}/out"]
    process = subprocess.run([*command, "name=kgcn"], capture_output=True, text=True, check=False)
    message = f"error: configuration: name=kgcn: not one of {', '.join(published.SETS)}; give one of these\n"
    assert (process.returncode, process.stderr) == (2, message)


def test_movielens_is_shuffled_as_numpy_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against pandas' own joins and cuts; an age's bucket is the last that begins at or below it."""
    ages = {"1": 17, "2": 18, "3": 24, "4": 56, "5": 49, "6": 50, "7": 7}
    users = [f"{user}\t{age}\tF\tother\tT8H{user}N" for user, age in ages.items()]
    ratings = [f"{user}\t{movie}\t{1 + (int(user) + movie) % 5}\t88{movie}" for movie in range(9) for user in ages]
    (tmp_path / "user").write_text("\n".join(["user_id:token\tage\tgender\toccupation\tzip_code", *users, ""]))
    (tmp_path / "inter").write_text("\n".join(["user_id:token\titem\trating\ttimestamp", *ratings, ""]))
    monkeypatch.setattr(published, "TRAIN_ROWS", 50)
    split_rows = published.tfrs_movielens_100k(tmp_path / "inter", tmp_path / "user")
    splits = {name: list(rows) for name, rows in split_rows.items()}
    table = pd.read_csv(tmp_path / "inter", sep="\t", names=["user", "movie", "rating", "time"], skiprows=1)
    table["age"] = table["user"].astype(str).map(ages)
    edges = [1, 18, 25, 35, 45, 50, 56, 200]
    table["bucket"] = pd.cut(table["age"], edges, right=False, labels=edges[:-1])
    shuffled = table.iloc[np.random.RandomState(42).permutation(len(table))]
    expected = [
        (str(row.rating), str(row.movie), str(row.user), "F", f"T8H{row.user}N", "other", row.bucket)
        for row in shuffled.itertuples()
    ]
    assert [len(rows) for rows in splits.values()] == [51, 14]
    assert splits["train"][1:] + splits["test"][1:] == expected
