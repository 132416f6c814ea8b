"""Keys of `python -m data_prep.published`."""

from dataclasses import dataclass

from common.keys import MISSING, key


@dataclass(frozen=True)
class PublishedDataConfig:
    """Which set, and where."""

    name: str = key(MISSING, "of the set: kgcn_lastfm or tfrs_movielens_100k")
    out: str | None = key(None, "directory of train.csv, test.csv and, where there is one, val.csv; null: data/NAME")
    raw: str | None = key(None, "directory that has its files, or that they are fetched into; null: OUT/raw")
