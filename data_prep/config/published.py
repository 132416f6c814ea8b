"""Keys of `python -m data_prep.published`."""

from dataclasses import dataclass

from common.keys import MISSING, key


@dataclass(frozen=True)
class PublishedDataConfig:
    """The published set, and its directories."""

    name: str = key(MISSING, "name of the dataset: kgcn_lastfm, ncf_movielens_1m, tfrs_movielens_100k")
    out: str | None = key(None, "directory of the splits, train.csv and so on; null: data/NAME")
    raw: str | None = key(None, "directory that holds its files, or to which they are downloaded; null: OUT/raw")
