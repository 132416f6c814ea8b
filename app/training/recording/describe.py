"""Description of a session for its run's manifest: dataset, files of initial values, tables."""

import hashlib
from pathlib import Path

from app.record.documents import Dataset, TableSize
from app.sharding import from_config
from app.sharding.execute import table_weights
from app.training.session import Session
from common.files import digest_file
from data_prep.dataset.manifest import Manifest
from data_prep.dataset.misleading import misleading_sentences
from data_prep.dataset.sampling import sampling_sentence
from data_prep.dataset.unseen import unseen_values

CHOOSE_ROWS = (  # keys of a manifest's `encoding`
    *("split", "held_out", "split_seed", "split_column", "train_seed", "test_first"),
    *("negative_drop_rate", "sampling_seed"),
)
MAX_SOURCES = 30  # names of raw files in a manifest


def describe_dataset(session: Session) -> Dataset:
    """Describe the dataset for a run's manifest; `bayes` has the figures of a ground-truth model, if there is one."""
    manifest = session.manifest
    labels = {name: _rows_digest(manifest, name) for name in manifest.splits if not manifest.kind.windows}
    return Dataset(
        path=str(session.root),
        digest=manifest.digest,
        rows=session.predictor.split_rows(),
        labels={**labels},
        label_rate=manifest.label_rate,
        encoding=manifest.encoding.get("name"),
        sources=[source.get("name") for source in manifest.sources[:MAX_SOURCES]],
        source_md5=manifest.extra.get("source_md5"),
        bayes=manifest.extra.get("bayes"),
        unseen=unseen_values(manifest),
        misleading=misleading_sentences(manifest.extra),
        sampling=sampling_sentence(manifest, session.config.loss.class_weights),
    )


def _rows_digest(manifest: Manifest, split: str) -> str:
    """Return a digest of a split's rows under any encoding: labels, weights, raw files, and what chose the rows.

    Labels alone do not tell rows apart: two files may have the same labels in the same order.
    """
    shards = manifest.splits[split].shards
    parts = [shard.files[kind].sha256 for kind in ("labels", "weights") for shard in shards if kind in shard.files]
    parts += [str(each.get("sha256")) for each in manifest.sources if each.get("split", split) == split]
    parts += [
        f"{key}={manifest.encoding[key]}" for key in CHOOSE_ROWS if manifest.sources and manifest.encoding.get(key)
    ]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def describe_files(session: Session) -> dict[str, str]:
    """Return the SHA-256, by path, of the files that initial values came from (row_weights_path)."""
    embeddings = getattr(session.model.module.sparse_arch, "embeddings", [])
    paths = [embedding.row_weights_path for embedding in embeddings if embedding.row_weights_path is not None]
    return {path: digest_file(Path(path)).sha256 for path in paths}


def describe_tables(session: Session) -> dict[str, TableSize]:
    """Return the size of each whole table and the ids looked up in it; bytes are of its weights alone."""
    arch = session.model.module.sparse_arch
    bag_sizes = from_config.bag_sizes_of(session.config, session.root, session.manifest)
    features = {table.name: [arch.feature_of[key] for key in table.keys] for table in arch.tables}
    by_id = {table.name: table.by_id for table in arch.tables}  # rows travel, not sums of them
    # Each attribute of a sharded tensor takes a millisecond.
    sizes = {name: (*weight.size(), weight.dtype.itemsize) for name, weight in table_weights(session.model)}
    return {
        name: TableSize(
            features=len(features[name]),
            by_id=by_id[name],
            ids_per_sample=sum(bag_sizes[feature] for feature in features[name]),
            num_embeddings=num_embeddings,
            embedding_dim=embedding_dim,
            bytes=num_embeddings * embedding_dim * itemsize,
        )
        for name, (num_embeddings, embedding_dim, itemsize) in sizes.items()
    }
