"""Rankings made from scores, and their tables, JSON and CSV."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALL = "all"  # candidates=all: every item in a log of events


class Scored(NamedTuple):
    """Candidates by name, their logits [n] and canonical order [n], and which feature values are unknown [n, F]."""

    names: Sequence[str]
    logits: NDArray[np.float32]
    order: NDArray[np.int64]
    unknown: NDArray[np.bool_]
    features: Sequence[str]
    about: dict[str, Any]


NONE_SCORED = Scored((), np.empty(0, np.float32), np.empty(0, np.int64), np.zeros((0, 0), np.bool_), (), {})


class Ranked(NamedTuple):
    """One candidate: its rank from 1, name and click probability, and the features whose values are unknown."""

    rank: int
    candidate: str
    probability: float
    logit: float
    out_of_vocabulary: list[str]


class RankedNumber(NamedTuple):
    """One candidate, ranked by a predicted number."""

    rank: int
    candidate: str
    prediction: float
    out_of_vocabulary: list[str]


Ranking = Sequence[Ranked] | Sequence[RankedNumber]


def rank(
    names: Sequence[str],
    logits: NDArray[np.float32],
    order: NDArray[np.int64],
    unknown: NDArray[np.bool_],
    features: Sequence[str],
    has_clicks: bool = True,
    correction: float = 0.0,
) -> Ranking:
    """Return the candidates from the best to the worst; equal scores come in the candidates' canonical order.

    Args:
        names: of the candidates.
        logits: [n]; order: [n], candidates in their canonical order; unknown: [n, F], per feature of `features`.
        has_clicks: whether these are logits of clicks; otherwise they are predicted numbers.
        correction: offset of logits of clicks; it changes no order.
    """
    best = order[np.argsort(-logits[order], kind="stable")].tolist()
    unknown_names = [[name for name, is_unknown in zip(features, row, strict=True) if is_unknown] for row in unknown]
    if not has_clicks:
        return [
            RankedNumber(number, names[i], float(logits[i]), unknown_names[i]) for number, i in enumerate(best, start=1)
        ]
    shown = logits.astype(np.float64) + correction
    clicks = probabilities(shown)
    return [
        Ranked(number, names[i], float(clicks[i]), float(shown[i]), unknown_names[i])
        for number, i in enumerate(best, start=1)
    ]


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of clicks [n] for these logits."""
    with np.errstate(over="ignore"):  # exp is infinite for logits below -709; their probability is 0
        clicks: NDArray[np.float64] = 1 / (1 + np.exp(-logits))
    return clicks


def to_table(ranking: Ranking) -> str:
    """Return aligned columns for a terminal."""
    rows = [("rank", "candidate", _columns(ranking)[2], "out of vocabulary")]
    rows += [(str(entry[0]), entry[1], f"{entry[2]:.6f}", " ".join(entry.out_of_vocabulary)) for entry in ranking]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _columns(ranking: Ranking) -> tuple[str, ...]:
    return ranking[0]._fields if ranking else Ranked._fields


def to_json(ranking: Ranking, about: dict[str, Any]) -> str:
    """Return the ranking with a description of it, as JSON."""
    return json.dumps({**about, "ranking": [candidate._asdict() for candidate in ranking]}, indent=1) + "\n"


def to_csv(ranking: Ranking) -> str:
    """Return one line per candidate; spaces join the unknown features."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(ranking))
    for candidate in ranking:
        writer.writerow([*candidate[:-1], " ".join(candidate.out_of_vocabulary)])
    return text.getvalue()
