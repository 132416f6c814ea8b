"""Labels of a log of events that a model learns."""

from pathlib import Path

from app.config import AppConfig
from app.data.split import Split
from common.errors import UserError
from common.extensions import keys_of_extension
from common.keys import shown
from extensions.sequences.event_log import EventSplit
from extensions.sequences.keys import SequencesConfig


def tasks(config: AppConfig) -> list[str]:
    """Return the actions to learn besides the log's label."""
    return keys_of_extension(config, SequencesConfig).tasks


def refuse_one_class(config: AppConfig, root: Path, split: Split) -> None:
    """Refuse to train on events if the samples' label, or a task's, has one class."""
    assert isinstance(split, EventSplit)
    if config.data.allow_degenerate:
        return
    names = tasks(config)
    label, rows, positives = split.log.schema.label, split.rows, split.positives
    for action in (label, *names):
        if positives[action] in (0, rows):
            key = f"data.path={root}" if action == label else f"sequences.tasks={shown(names)}"
            share = "none" if not positives[action] else "each"
            counts = ", ".join(f"{name} ({count:,})" for name, count in positives.items())
            remedy = (
                "correct the log's schema, or sequences.min_history and .eval_window"
                if action == label
                else f"leave {action} out, or correct `anchors` in the log's schema"
            )
            raise UserError(
                f"{key}: {share} of the {rows:,} samples to train on is {action}, so nothing can be learned of it; "
                f"samples of each action: {counts}; {remedy}, or set data.allow_degenerate=true"
            )
