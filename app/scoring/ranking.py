"""Scores to a ranking, and a ranking to a table, JSON or CSV."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("rank", "candidate", "probability", "logit", "out_of_vocabulary")


class Ranked(NamedTuple):
    """One candidate: its rank from 1, its name, its click probability and features with values not known."""

    rank: int
    candidate: str
    probability: float
    logit: float
    out_of_vocabulary: list[str]


def rank(
    names: Sequence[str],
    logits: NDArray[np.float32],
    order: NDArray[np.int64],
    unknown: NDArray[np.bool_],
    features: Sequence[str],
) -> list[Ranked]:
    """Candidates from the best to the worst; those with equal scores in their canonical order.

    Args:
        logits: [n]; order: [n], candidates in their canonical order; unknown: [n, F], per feature of `features`.
    """
    best = order[np.argsort(-logits[order], kind="stable")]
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return [
        Ranked(
            rank=number,
            candidate=names[i],
            probability=float(probabilities[i]),
            logit=float(logits[i]),
            out_of_vocabulary=[feature for feature, is_unknown in zip(features, unknown[i], strict=True) if is_unknown],
        )
        for number, i in enumerate(best.tolist(), start=1)
    ]


def to_table(ranking: Sequence[Ranked]) -> str:
    """Aligned columns for a terminal."""
    rows = [("rank", "candidate", "probability", "out of vocabulary")]
    rows += [(str(r.rank), r.candidate, f"{r.probability:.6f}", " ".join(r.out_of_vocabulary)) for r in ranking]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def to_json(ranking: Sequence[Ranked], about: dict[str, Any]) -> str:
    """The ranking with a description of it, as JSON."""
    return json.dumps({**about, "ranking": [candidate._asdict() for candidate in ranking]}, indent=1) + "\n"


def to_csv(ranking: Sequence[Ranked]) -> str:
    """One line a candidate; the features not known are joined by spaces."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for candidate in ranking:
        writer.writerow([*candidate[:-1], " ".join(candidate.out_of_vocabulary)])
    return text.getvalue()
