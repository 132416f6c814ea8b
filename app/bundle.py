"""python -m app.bundle run=runs/NAME out=NAME.bundle: a run's record as one file, for `verify bundle=FILE` elsewhere.

The file has the record, the locked releases and the dataset's manifest, but neither checkpoints nor rows.
"""

if __name__ == "__main__":
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["bundle"])


from pathlib import Path

from app.config.commands import BundleConfig
from app.replay import write_bundle
from common.command import log


def main(config: BundleConfig) -> None:
    """Write the file."""
    run = Path(config.run)
    out = Path(config.out or f"{run}.bundle")
    log.info("bundle: %s: %d bytes; elsewhere: clickwork verify bundle=%s", out, write_bundle(run, out), out.name)
