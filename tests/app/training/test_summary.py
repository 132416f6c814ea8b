"""When an evaluation is called a collapse."""

import pytest

from app.metrics.documents import EvaluationFigures
from app.training.evaluator import is_collapsed


@pytest.mark.parametrize(
    ("auc", "ne", "collapsed"),
    [
        (0.5, 1.0, True),
        (0.503, 1.2, True),
        (0.497, 1.0, True),
        (0.52, 1.0, False),
        (0.501, 0.99, False),
        (None, None, False),
    ],
)
def test_collapse_is_chance_and_no_knowledge(auc: float | None, ne: float | None, collapsed: bool) -> None:
    assert is_collapsed(EvaluationFigures(auc=auc, rest={"ne": ne})) == collapsed
