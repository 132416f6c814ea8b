"""Datasets to and from the files of other programs, streaming.

    python -m extensions.exchange data.path=DATASET exchange.to=DIRECTORY exchange.format=FORMAT
    python -m extensions.exchange data.path=DATASET exchange.source=DIRECTORY exchange.format=FORMAT

Formats: `npy`, TorchRec's and MLPerf's day_N_{dense,sparse,labels}.npy, the last day holding val, then test;
`bin`, the terabyte_processed_{train,val,test}.bin of NVIDIA's v0.7 submission and DeepSpark: per row 40
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
from extensions.exchange.files import ExchangeFormat, InterchangeConfig, export_bin, export_npy, import_bin, import_npy


def main(config: InterchangeConfig) -> int:
    """Export or import as configured, and return an exit status."""
    root, exchange = Path(config.data.path), config.exchange
    if (exchange.to is None) == (exchange.source is None):
        raise UserError("exchange: give either exchange.to, to export, or exchange.source, to import")
    imports_bin = exchange.source is not None and exchange.format is ExchangeFormat.bin
    if config.data.dense_transform is not None and not imports_bin:
        raise UserError("data.dense_transform: has no effect but where exchange.format=bin is imported; leave it out")
    try:
        return _export_or_import(config, root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or exchange.to or root}: {reason}; check the paths and the disk") from error


def _export_or_import(config: InterchangeConfig, root: Path) -> int:
    """Export the dataset of `root` to exchange.to, or make it of exchange.source; print what was done."""
    exchange = config.exchange
    if exchange.to is not None:
        target = Path(exchange.to)
        manifest = load_rows_manifest(root)
        export = export_bin if exchange.format is ExchangeFormat.bin else export_npy
        files = export(root, manifest, target)
        print(f"{target}: {len(files)} files of {manifest.rows:,} rows")
        return EXIT_DONE
    directory = Path(exchange.source or "")
    if exchange.format is ExchangeFormat.bin:
        manifest = import_bin(directory, root, config.data.dense_transform)
    else:
        manifest = import_npy(directory, root)
    print(f"{root}: {manifest.rows:,} rows imported from {', '.join(source['name'] for source in manifest.sources)}")
    return EXIT_DONE
