"""Write the splits of a published dataset: train.csv, val.csv and test.csv, which recipes of the same name read.

    python -m data_prep.published name=kgcn_lastfm [out=data/kgcn_lastfm] [raw=DIR]

Its files are downloaded into OUT/raw or taken from DIR. docs/recipes.md has their licenses.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from common.cli import run
    from data_prep.commands import COMMANDS

    run(COMMANDS["published-data"])


from pathlib import Path

from common.cli import EXIT_DONE
from common.errors import UserError
from data_prep.config import PublishedDataConfig
from data_prep.published.sets import SETS, write_splits


def main(config: PublishedDataConfig) -> int:
    """Write the splits as configured, and return an exit status."""
    if config.name not in SETS:
        raise UserError(f"name={config.name}: must be one of {', '.join(SETS)}")
    published = SETS[config.name]
    out = Path(config.out or f"data/{config.name}")
    print(published.title)
    for path in write_splits(published, Path(config.raw) if config.raw else out / "raw", out):
        print(path)
    return EXIT_DONE
