"""Fewer points for the eye, none of the extremes lost."""

from collections.abc import Sequence

import numpy as np

MOST_POINTS = 2000


def least_and_greatest(
    x: Sequence[float], y: Sequence[float | None], most: int = MOST_POINTS
) -> tuple[list[float], list[float | None]]:
    """At most `most` points of a long line: of each stretch of equally many points its least and its greatest.

    Peaks stay, unlike with every k-th point or with means, and points stay at their own x. The first and the last
    point stay. None (not measured) is left out of a line that is thinned.
    """
    if len(x) <= most:
        return list(x), list(y)
    xs = np.asarray(x, np.float64)
    ys = np.array([np.nan if value is None else value for value in y], np.float64)
    known = np.flatnonzero(np.isfinite(ys))
    if len(known) <= most:
        return xs[known].tolist(), ys[known].tolist()
    keep = {int(known[0]), int(known[-1])}
    for stretch in np.array_split(known, most // 2 - 1):
        keep |= {int(stretch[ys[stretch].argmin()]), int(stretch[ys[stretch].argmax()])}
    kept = sorted(keep)
    return xs[kept].tolist(), ys[kept].tolist()
