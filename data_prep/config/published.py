"""Keys of `python -m data_prep.published`."""

from dataclasses import dataclass

from common.keys import MISSING, key


@dataclass(frozen=True)
class PublishedDataConfig:
    """The published set, and its directories."""

    name: str = key(MISSING, "of the set: kgcn_lastfm, ncf_movielens_1m, tfrs_movielens_100k")
    out: str | None = key(None, "directory of the splits, train.csv and so on; null: data/NAME")
    raw: str | None = key(None, "directory that has its files, or that they are fetched into; null: OUT/raw")
