"""HR@10 and NDCG@10 as the program of Neural Collaborative Filtering computes them, in plain loops."""

import heapq
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranked(logits: NDArray[Any], labels: NDArray[Any], groups: NDArray[Any], rows: NDArray[Any]) -> tuple[float, float]:
    """HR@10 and NDCG@10 as NCF's program has them: the first ten of a dictionary from items to scores.

    Each positive is ranked among the negatives of its group alone, after those with the same score.
    """
    hits, gains = [], []
    for group in np.unique(groups):
        of_group = [place for place in range(len(groups)) if groups[place] == group]
        positives = {rows[place]: logits[place] for place in of_group if labels[place] == 1}
        negatives = {rows[place]: logits[place] for place in of_group if rows[place] not in positives}
        for item, score in positives.items() if negatives else ():
            scores = {**negatives, item: score}
            first = heapq.nlargest(10, scores, key=lambda key: scores[key])
            hits.append(item in first)
            gains.append(math.log(2) / math.log(first.index(item) + 2) if item in first else 0.0)
    return float(np.mean(hits)), float(np.mean(gains))
