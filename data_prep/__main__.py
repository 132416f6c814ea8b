"""Raw clicks to shards.

    python -m data_prep data.raw=PATH data.path=OUT [data.encoding=vocabulary|hash] [data.workers=N] …
    python -m data_prep data.source=synthetic data.path=OUT [data.synthetic.rows=N] …

`python -m data_prep.verify data.path=OUT` checks what was written. docs/data.md explains the choices.
"""

import pickle
import sys

from common import signals
from common.cli import EXIT_DONE, EXIT_STOPPED, exit_status, run
from data_prep.commands import COMMANDS
from data_prep.config import PICKLED, PrepConfig, may_use_processes
from data_prep.dataset.format import MANIFEST_NAME
from data_prep.executor import start_fork_server


def main(config: PrepConfig) -> int:
    """Preprocess as configured, and return an exit status."""
    root = config.data.root  # checked before imports that take a second
    try:
        is_made = (root / MANIFEST_NAME).exists()
        if may_use_processes(config.data) and not config.data.source_kind.generator and not is_made:
            start_fork_server(config.data.schema is not None)  # imports most of the following in the background
        if config.data.schema is not None:
            from data_prep.parsing import readers  # noqa: F401
        from data_prep.pipeline import preprocess

        preprocess(config.data)
    except signals.Interrupted as error:
        signals.say(f"{error.signal.name}: stopped; run the same command again to resume")
        return EXIT_STOPPED
    return EXIT_DONE


if __name__ == "__main__":
    if sys.argv[1:] == [PICKLED]:
        signals.end_with_parent()
        sys.exit(exit_status(lambda: main(pickle.load(sys.stdin.buffer))))
    run(COMMANDS["preprocess"])
