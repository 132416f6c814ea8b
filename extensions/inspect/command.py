"""Propose the schema of your own table, and show its columns on a page.

    python -m data_prep.inspect data.raw=ratings.csv [data.label="rating >= 4"] [out=DIR] > ratings.yaml

The schema goes to stdout, as YAML with comments; notes, and where the page lies, to stderr.
"""

import sys
from pathlib import Path

from common.cli import EXIT_DONE
from common.limits import require_memory
from data_prep.parsing.table_yaml import without_empty_parts
from data_prep.sources.discover import resolve_sources
from extensions.inspect.keys import InspectConfig
from extensions.inspect.proposal import propose_schema
from extensions.inspect.text import order_sentences


def main(config: InspectConfig) -> int:
    """Inspect as configured, and return an exit status."""
    require_memory("inspecting")
    sources = without_empty_parts(resolve_sources(config.data.raw))
    proposal = propose_schema(sources, config.data.label)
    from extensions.inspect.page import write_inspection

    path = write_inspection(proposal, Path(config.out))
    print(proposal.text, end="")
    for sentence in [*order_sentences(proposal), *proposal.notes]:
        print(sentence, file=sys.stderr)
    print(f"{path}: the columns, their values and label rates", file=sys.stderr)
    return EXIT_DONE
