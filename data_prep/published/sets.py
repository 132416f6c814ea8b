"""The published sets by name: sources, functions that make the splits, and checksums of both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.command import load
from common.errors import UserError
from common.files import digest_file, temporary_path
from data_prep.sources.download import RemoteFile, download_all

NCF = "hexiangnan/neural_collaborative_filtering/4aab159e81c44b062c091bdaed0ab54ac632371f"

Rows = Iterable[tuple[object, ...]]


@dataclass(frozen=True)
class PublishedSet:
    """A published set.

    Attributes:
        title: title, authors and license.
        url: prefix of the files' paths.
        files: SHA-256 by path; file names are distinct.
        function: module:function that takes the files' paths and returns the rows of each split, beginning with a
            header.
        splits: SHA-256 of each split's file.
    """

    title: str
    url: str
    files: Mapping[str, str]
    function: str
    splits: Mapping[str, str]


SETS = {
    "kgcn_lastfm": PublishedSet(
        "Last.FM of HetRec 2011 (non-commercial use), with the artists, split and negatives of KGCN (Wang et al. 2019; "
        "MIT)",
        "https://raw.githubusercontent.com/hwwang55/KGCN/2363ca2ddc66a79860629b2e0ec6ad23c57697c8/data/music/",
        {
            "user_artists.dat": "254272fa721c3935e8be286d28c051b206844307128698ab4eaa41d483379416",
            "item_index2entity_id.txt": "f9693bdde538f755d09b9931b0be662a98965e538658a00c2050912c0adf487b",
        },
        "data_prep.published.kgcn_lastfm:split_rows",
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
        "data_prep.published.ncf_movielens_1m:split_rows",
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
        "data_prep.published.tfrs_movielens_100k:split_rows",
        {
            "train": "0348dcacc64f67701345bea9aa6593a7578e554a291e0d66d5312d269caba4e8",
            "test": "ba1801a090757931568ed659b0b1adc412cd586d2c94c2d51e2479f628441ecd",
        },
    ),
}


def write_splits(published: PublishedSet, raw: Path, out: Path) -> list[Path]:
    """Download the files that `raw` lacks, and write out/SPLIT.csv for each split."""
    remote = [
        RemoteFile(
            Path(path).name,
            (published.url + path,),
            sha256,
            otherwise=f"get {published.url}{path} and put it into {raw}",
        )
        for path, sha256 in published.files.items()
    ]
    paths = download_all(remote, raw)
    # A file that was there already may be another one, as downloads keep it.
    for path, expected in zip(paths, published.files.values(), strict=True):
        if (sha256 := digest_file(path).sha256) != expected:
            raise UserError(f"{path}: sha256 {sha256} where the published file has {expected}; delete it")
    out.mkdir(parents=True, exist_ok=True)
    targets = {split: temporary_path(out / f"{split}.csv") for split in published.splits}
    try:
        for split, rows in load(published.function)(*paths).items():
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
