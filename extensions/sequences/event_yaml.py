"""Reader of the YAML file that describes a log of events (docs/sequences.md)."""

from pathlib import Path
from typing import Any

import yaml

from common.documents import convert
from common.errors import UserError
from data_prep.dataset.table_spec import RULE
from data_prep.parsing.dates import fault_of_format
from extensions.sequences.event_schema import EventSchema


def load_event_schema(path: Path) -> EventSchema:
    """Read a schema from its YAML file."""
    try:
        document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(document, dict):
        raise UserError(f"{path}: no keys in it; docs/sequences.md explains them")
    if isinstance(document.get("time"), dict):
        time = document["time"]
        if not {"column"} <= set(time) <= {"column", "format"}:
            raise UserError(f"{path}: key time: give a column, or {{column: NAME, format: epoch_ms}}")
        form = time.get("format")
        if isinstance(form, str) and (fault := fault_of_format(form)) is not None:
            raise UserError(f"{path}: key time, format {form}: {fault}")
        document |= {"time": time["column"], "time_format": form}
    for key in ("actions", "anchors", "others"):
        value = document.get(key)
        if isinstance(value, dict):
            of = value.items() if key == "actions" else [("", value)]
            plain = {name: _condition(path, f"{key}.{name}".rstrip("."), each, key) for name, each in of}
            document[key] = plain if key == "actions" else plain[""]
    try:
        schema: EventSchema = convert(document, EventSchema)
    except ValueError as error:
        raise UserError(f"{path}: {error}; docs/sequences.md explains the keys") from error
    if fault := schema.fault():
        raise UserError(f"{path}: key {fault}")
    return schema


def _condition(path: Path, key: str, condition: Any, kind: str) -> dict[str, Any]:
    """Convert a condition to the form of `EventSchema`: lists of texts, or rules."""
    if not isinstance(condition, dict):
        raise UserError(f'{path}: key {key}: give columns and what they hold, e.g. {{event: like, rating: ">= 4"}}')
    plain: dict[str, Any] = {}
    for column, value in condition.items():
        if kind != "others" and isinstance(value, str) and RULE.fullmatch(value):
            plain[str(column)] = value.strip()
        else:
            plain[str(column)] = [str(each) for each in (value if isinstance(value, list) else [value])]
    return plain
