"""Join the two files of MovieLens: python examples/movielens/join.py DIRECTORY.

DIRECTORY has ratings.csv and movies.csv, as a MovieLens archive does. clicks.parquet is written beside them, in the
order of time, so that the last ratings are held out:

    python -m data_prep data.raw=DIRECTORY/clicks.parquet data.schema=examples/movielens/schema.yaml \
        data.path=data/movielens data.split.method=fraction
    python -m app.train data.path=data/movielens run.name=movielens
"""

import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

directory = Path(sys.argv[1])
ratings, movies = (pyarrow.csv.read_csv(directory / name) for name in ("ratings.csv", "movies.csv"))
clicks = ratings.join(movies, "movieId").sort_by([("timestamp", "ascending"), ("userId", "ascending")])
pyarrow.parquet.write_table(clicks, directory / "clicks.parquet")
