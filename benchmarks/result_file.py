"""A benchmark's result as committed: what it was asked for, what made it, what it found."""

import argparse
import json
from pathlib import Path
from typing import Any

from app.record import provenance
from common.documents import plain_object


def write_result(arguments: argparse.Namespace, results: Any) -> None:
    """Write `arguments.out` as JSON, if it was given; paths, which are of one machine only, are left out of it."""
    if arguments.out is None:
        return
    parameters = {key: value for key, value in vars(arguments).items() if key != "out" and not isinstance(value, Path)}
    run = {key: value for key, value in plain_object(provenance.describe_run()).items() if key != "argv"}
    document = {"arguments": parameters, "made by": run, "results": results}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
