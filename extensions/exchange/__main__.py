"""Datasets to and from the files of other programs, streaming.

    python -m extensions.exchange data.path=DATASET exchange.to=DIRECTORY exchange.format=FORMAT
    python -m extensions.exchange data.path=DATASET exchange.source=DIRECTORY exchange.format=FORMAT

Formats: `npy`, TorchRec's and MLPerf's day_N_{dense,sparse,labels}.npy, the last day holding val, then test;
`multi_hot`, MLPerf v2's day_N_sparse_multi_hot.npz beside day_N_{dense,labels}.npy (bags of the dataset, or made of
its ids); `bin`, the terabyte_processed_{train,val,test}.bin of NVIDIA's v0.7 submission and DeepSpark: per row 40
int32, the label, the integers as they are in the raw file, the ids.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["interchange"])


from pathlib import Path

from common.cli import EXIT_DONE
from common.errors import UserError
from data_prep.dataset.format import load_rows_manifest
from data_prep.dataset.options import LabelKind
from extensions.exchange.export import export_bin, export_multi_hot, export_npy
from extensions.exchange.importer import import_bin, import_npy
from extensions.exchange.keys import ExchangeFormat, InterchangeConfig


def main(config: InterchangeConfig) -> int:
    """Export or import as configured, and return an exit status."""
    root, exchange = Path(config.data.path), config.exchange
    if (exchange.to is None) == (exchange.source is None):
        raise UserError("exchange: give either exchange.to, to export, or exchange.source, to import")
    is_bin = exchange.source is not None and exchange.format is ExchangeFormat.bin
    if config.data.dense_transform is not None and not is_bin:
        raise UserError("data.dense_transform: has no effect but where exchange.format=bin is imported; leave it out")
    for key in ("multi_hot_sizes", "distribution", "seed"):
        if getattr(exchange, key) is not None and (
            exchange.to is None or exchange.format is not ExchangeFormat.multi_hot
        ):
            raise UserError(f"exchange.{key}: has no effect but where bags are exported; leave it out")
    try:
        return _exchange(config, root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or exchange.to or root}: {reason}; check the paths and the disk") from error


def _exchange(config: InterchangeConfig, root: Path) -> int:
    exchange = config.exchange
    if exchange.to is not None:
        target = Path(exchange.to)
        manifest = load_rows_manifest(root)
        if manifest.label_kind is LabelKind.number:
            raise UserError(
                f"data.path={root}: its labels are numbers, and these files have labels of 0 and 1; read the shards "
                "themselves, which are plain NumPy files"
            )
        if manifest.weight:
            raise UserError(
                f"data.path={root}: its rows have sample weights ({manifest.weight}), and these files have no place "
                "for them; read the shards themselves, which are plain NumPy files"
            )
        if exchange.format is ExchangeFormat.npy:
            files = export_npy(root, manifest, target)
        elif exchange.format is ExchangeFormat.multi_hot:
            files = export_multi_hot(root, manifest, target, exchange)
        else:
            files = export_bin(root, manifest, target)
        print(f"{target}: {len(files)} files of {manifest.rows:,} rows")
        return EXIT_DONE
    assert exchange.source is not None
    source = Path(exchange.source)
    if exchange.format is ExchangeFormat.bin:
        manifest = import_bin(source, root, config.data.dense_transform)
    else:
        manifest = import_npy(source, root, is_multi_hot=exchange.format is ExchangeFormat.multi_hot)
    print(f"{root}: {manifest.rows:,} rows imported from {', '.join(each['name'] for each in manifest.sources)}")
    return EXIT_DONE
