"""Write the splits of a published dataset: train.csv, val.csv and test.csv, which recipes of the same name read.

    python -m data_prep.published name=kgcn_lastfm [out=data/kgcn_lastfm] [raw=DIR]

Its files are downloaded into OUT/raw or taken from DIR. docs/recipes.md has their licenses.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from common.cli import run
    from data_prep.commands import COMMANDS

    run(COMMANDS["published-data"])


from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from common.cli import EXIT_DONE
from common.errors import UserError
from common.files import digest_file, temporary_path
from data_prep.config import PublishedDataConfig
from data_prep.sources.download import RemoteFile, download_all

NCF = "hexiangnan/neural_collaborative_filtering/4aab159e81c44b062c091bdaed0ab54ac632371f"
PAIRS_HEADER = ("label", "user", "item")
KGCN_SEED = 555
HELD_OUT_SHARE = 0.2  # of KGCN's val and of its test
TFRS_SEED, TRAIN_ROWS = 42, 80_000
AGES = (1, 18, 25, 35, 45, 50, 56)  # lowest age of each bucket, which names it, as in TensorFlow Datasets
TFRS_HEADER = (
    "user_rating",
    "movie_id",
    "user_id",
    "user_gender",
    "user_zip_code",
    "user_occupation_text",
    "bucketized_user_age",
)

Rows = Iterable[tuple[object, ...]]


@dataclass(frozen=True)
class PublishedSet:
    """A published set.

    Attributes:
        title: title, authors and license.
        url: prefix of the files' paths.
        files: SHA-256 by path; file names are distinct.
        function: takes the files' paths and returns the rows of each split, beginning with a header.
        splits: SHA-256 of each split's file.
    """

    title: str
    url: str
    files: Mapping[str, str]
    function: Callable[..., Mapping[str, Rows]]
    splits: Mapping[str, str]


def kgcn_lastfm(listened: Path, artists: Path) -> Mapping[str, Rows]:
    """Return rows (label, user, item) of KGCN's train, val and test: what a user listened to, and as many others drawn.

    Follows src/preprocess.py and src/data_loader.py of hwwang55/KGCN at 2363ca2, both with numpy.random.seed(555).

    listened: lines `user artist weight` with a header, tab-separated. artists: lines `artist entity`; the line number
    is the item's number.
    """
    items = {
        line.split("\t")[0]: number for number, line in enumerate(artists.read_text(encoding="utf-8").splitlines())
    }
    positives: dict[int, set[int]] = {}
    for line in listened.read_text(encoding="utf-8").splitlines()[1:]:
        user, artist, _ = line.split("\t")
        # KGCN leaves out artists that its graph of knowledge lacks.
        if artist in items:
            positives.setdefault(int(user), set()).add(items[artist])

    # Rows (label, user, item): each user's positives, then as many negatives. Users are numbered by first appearance.
    # The draws depend on the order of CPython's sets.
    draw, pairs = np.random.RandomState(KGCN_SEED), []
    all_items = set(items.values())
    for user_number, user_items in enumerate(positives.values()):
        negatives = draw.choice(list(all_items - user_items), size=len(user_items), replace=False)
        pairs += [(1, user_number, item) for item in user_items]
        pairs += [(0, user_number, int(item)) for item in negatives]

    # The row numbers of each split, in KGCN's order; its second program seeds the generator anew.
    draw, held_out = np.random.RandomState(KGCN_SEED), int(len(pairs) * HELD_OUT_SHARE)
    val = draw.choice(list(range(len(pairs))), size=held_out, replace=False).tolist()
    remaining = set(range(len(pairs))) - set(val)
    test = draw.choice(list(remaining), size=held_out, replace=False).tolist()
    orders = {"train": list(remaining - set(test)), "val": val, "test": test}
    rows = np.array(pairs)
    return {split: [PAIRS_HEADER, *rows[order].tolist()] for split, order in orders.items()}


def ncf_movielens_1m(ratings: Path, test_rating: Path, test_negative: Path) -> Mapping[str, Rows]:
    """Return rows (label, user, item): train's with label 1, and test's with each user's positive, then negatives.

    As in Neural Collaborative Filtering (hexiangnan/neural_collaborative_filtering at 4aab159): its train.rating holds
    all pairs except those of test.rating, in the order of ratings.dat. Users are numbered by their ids less one, items
    by first appearance in that order.

    Args:
        ratings: Parquet with the columns userID and movieID of all pairs as text.
        test_rating: lines `user item rating time`, tab-separated.
        test_negative: lines of the same users, tab-separated: `(user,item)` and the negatives. 156 negatives equal the
            user's positive; they stay.
    """
    import pyarrow.parquet  # training imports this module for the names of its sets

    table = pyarrow.parquet.read_table(ratings, columns=["userID", "movieID"])
    users, films = (column.to_numpy().astype(np.int64) for column in table.columns)
    users -= 1
    # The published test pairs number films by their first appearance.
    _, first, inverse = np.unique(films, return_index=True, return_inverse=True)
    items = first.argsort().argsort()[inverse]
    test = np.loadtxt(test_rating, np.int64, delimiter="\t", usecols=(0, 1))
    negatives = [line.split("\t")[1:] for line in test_negative.read_text(encoding="utf-8").splitlines()]
    num_items = int(items.max()) + 1
    # One number for a pair turns the search for pairs into a search for numbers.
    is_test = np.isin(users * num_items + items, test[:, 0] * num_items + test[:, 1])
    pairs = zip(users[~is_test].tolist(), items[~is_test].tolist(), strict=True)
    # Each user's positive comes first, then the negatives to rank it among.
    candidates: list[tuple[object, ...]] = [PAIRS_HEADER]
    for (user, item), others in zip(test.tolist(), negatives, strict=True):
        candidates.append((1, user, item))
        candidates += [(0, user, int(other)) for other in others]
    return {"train": chain([PAIRS_HEADER], ((1, user, item) for user, item in pairs)), "test": candidates}


def tfrs_movielens_100k(ratings: Path, users: Path) -> Mapping[str, Rows]:
    """Return the rows of train and test, with the columns and sizes of TensorFlow Recommenders' tutorial of DCN v2.

    The tutorial shuffles the order of TensorFlow Datasets by TensorFlow's generator. This function shuffles RecBole's
    order of the ratings by NumPy's.

    ratings: lines `user item rating timestamp` with a header, tab-separated. users: lines `user age gender occupation
    zip_code` with a header, tab-separated.
    """
    user_fields = {}
    for line in users.read_text(encoding="utf-8").splitlines()[1:]:
        user, age, gender, occupation, zip_code = line.split("\t")
        bucket = AGES[int(np.searchsorted(AGES, int(age), "right")) - 1]
        user_fields[user] = gender, zip_code, occupation, bucket
    rows = []
    for line in ratings.read_text(encoding="utf-8").splitlines()[1:]:
        user, movie, rating, _ = line.split("\t")
        rows.append((rating, movie, user, *user_fields[user]))
    order = np.random.RandomState(TFRS_SEED).permutation(len(rows)).tolist()
    parts = {"train": order[:TRAIN_ROWS], "test": order[TRAIN_ROWS:]}
    return {split: [TFRS_HEADER, *(rows[number] for number in numbers)] for split, numbers in parts.items()}


SETS = {
    "kgcn_lastfm": PublishedSet(
        "Last.FM of HetRec 2011 (non-commercial use), with the artists, split and negatives of KGCN (Wang et al. 2019; "
        "MIT)",
        "https://raw.githubusercontent.com/hwwang55/KGCN/2363ca2ddc66a79860629b2e0ec6ad23c57697c8/data/music/",
        {
            "user_artists.dat": "254272fa721c3935e8be286d28c051b206844307128698ab4eaa41d483379416",
            "item_index2entity_id.txt": "f9693bdde538f755d09b9931b0be662a98965e538658a00c2050912c0adf487b",
        },
        kgcn_lastfm,
        {
            "train": "e6b95b90c90c58466f7e1f23330d8a8a64d39a0d521f2d63eff229241180e5f5",
            "val": "c38a1f36ce81de49c1e23997e33492064d9286a28ee42975b597a365a170164f",
            "test": "de1633ef3df812d1f8185a1a5961a31b4d842558d8d8c4f9545f5e369a920c92",
        },
    ),
    "ncf_movielens_1m": PublishedSet(
        "MovieLens 1M (GroupLens; for research, neither redistributed nor used commercially), with the test pairs and "
        "negatives of Neural Collaborative Filtering (He et al. 2017; Apache-2.0)",
        "https://raw.githubusercontent.com/",
        {
            "bigdataguide/AuraSparkTraining/03ebfaf1fdd7a0abd40578aa2ab72bcac51f18db/data/ml-1m/ratings.parquet": (
                "b354c7081dd0a6ca6b2711d6ae48d057ade864332ae90e28856372997d88994f"
            ),
            f"{NCF}/Data/ml-1m.test.rating": "231ae11eb060b643a8c58c063cd17ffc743b54f569afb073d1abb6cf126b88b5",
            f"{NCF}/Data/ml-1m.test.negative": "127853228a76b7d21c0481e8ef8d00dd009cd5c88670dbdd9e9debfdb9f93de4",
        },
        ncf_movielens_1m,
        {
            "train": "913006b62f47c589e9457f646f22dab6020b5d3cbdce3c507f5f100fba684976",
            "test": "4eb2b9e2f1df5f4cdb8792576d202d58dc20fef53b51d53840044a02c881f316",
        },
    ),
    "tfrs_movielens_100k": PublishedSet(
        "MovieLens-100K of GroupLens (research use, no redistribution) as RUCAIBox/RecBole keeps it, with the "
        "columns and sizes of TensorFlow Recommenders' tutorial of DCN v2, in a shuffle of NumPy's",
        "https://raw.githubusercontent.com/RUCAIBox/RecBole/7b02be5ec80a88310f2d04a27a82adfcbb5dc211/dataset/ml-100k/",
        {
            "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
            "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
        },
        tfrs_movielens_100k,
        {
            "train": "0348dcacc64f67701345bea9aa6593a7578e554a291e0d66d5312d269caba4e8",
            "test": "ba1801a090757931568ed659b0b1adc412cd586d2c94c2d51e2479f628441ecd",
        },
    ),
}


def main(config: PublishedDataConfig) -> int:
    """Write the splits as configured, and return an exit status."""
    published = SETS[config.name.value]
    out = Path(config.out or f"data/{config.name.value}")
    print(published.title)
    for path in write_splits(published, Path(config.raw) if config.raw else out / "raw", out):
        print(path)
    return EXIT_DONE


def write_splits(published: PublishedSet, raw: Path, out: Path) -> list[Path]:
    """Download the files that `raw` lacks, and write out/SPLIT.csv for each split."""
    remote = [RemoteFile(Path(path).name, (published.url + path,), sha256) for path, sha256 in published.files.items()]
    paths = download_all(remote, raw)
    # A file that was there already may be another one, as downloads keep it.
    for path, expected in zip(paths, published.files.values(), strict=True):
        if (sha256 := digest_file(path).sha256) != expected:
            raise UserError(f"{path}: sha256 {sha256} where the published file has {expected}; delete it")
    out.mkdir(parents=True, exist_ok=True)
    targets = {split: temporary_path(out / f"{split}.csv") for split in published.splits}
    try:
        for split, rows in published.function(*paths).items():
            targets[split].write_text("".join(f"{','.join(map(str, row))}\n" for row in rows), encoding="utf-8")
        # Python and NumPy may change their draws between releases, so the result is compared, not the releases.
        for split, path in targets.items():
            if digest_file(path).sha256 != published.splits[split]:
                raise UserError(
                    f"{out}/{split}.csv: other rows than those of the published split, which CPython 3.10 to 3.12 with "
                    "NumPy 2 draw; use one of these"
                )
        return [path.replace(out / f"{split}.csv") for split, path in targets.items()]
    finally:
        for path in targets.values():
            path.unlink(missing_ok=True)
