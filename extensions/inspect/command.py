"""Propose the schema of your own table, and show its columns on a page.

    python -m data_prep.inspect data.raw=ratings.csv [data.label="rating >= 4"] [out=DIR] > ratings.yaml

The schema goes to stdout, as YAML with comments; notes, and where the page lies, to stderr.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.cli import EXIT_DONE
from common.errors import UserError
from common.limits import require_memory
from data_prep.parsing.table_yaml import without_empty_parts
from data_prep.sources.discover import Source, resolve_sources, without_packing
from extensions.inspect.keys import InspectConfig
from extensions.inspect.proposal import propose_schema
from extensions.inspect.text import order_sentences


def main(config: InspectConfig) -> int:
    """Inspect as configured, and return an exit status."""
    require_memory("inspecting")
    sources = without_empty_parts(resolve_sources(config.data.raw))
    proposal = propose_schema(sources, config.data.label)
    from app.report.page import write_page
    from extensions.inspect.page import inspection_page

    page = inspection_page(proposal, Path(sources[0].path).parent)
    path = Path(config.out) / f"{_page_name(config.data.raw, sources)}.html"
    try:
        write_page(path, page)
    except OSError as error:
        raise UserError(f"out={config.out}: not a directory ({error.strerror}); give another") from error
    print(proposal.text, end="")
    for sentence in [*order_sentences(proposal), *proposal.notes]:
        print(sentence, file=sys.stderr)
    print(f"{path}: the columns, their values and label rates", file=sys.stderr)
    return EXIT_DONE


def _page_name(raw: Any, sources: Sequence[Source]) -> str:
    """Return the name of one file without its endings, or of the directory or glob of several."""
    if len(sources) == 1:
        return Path(without_packing(sources[0].name)).stem
    return re.sub(r"[^\w-]", "", Path(raw).stem if isinstance(raw, str) else "") or "table"
