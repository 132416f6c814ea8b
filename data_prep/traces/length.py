"""What becomes of a trace's locality where more or fewer accesses are generated than were profiled."""

import sys

import numpy as np

from data_prep.traces.histogram import BIN_STARTS, TableProfile

TOLERATED = 0.01  # difference in hit rate that nobody is warned of


def share_used_before(profile: TableProfile, accesses: int) -> float:
    """Share of the first `accesses` that are to ids used before: what a cache of any size can hit at most.

    First uses come as they came in the profiled trace, and none come after its end (AccessGenerator).
    """
    first_uses = np.concatenate(([0], np.cumsum(profile.first_uses)))
    return 1 - float(np.interp(accesses, np.minimum(BIN_STARTS, profile.accesses), first_uses)) / max(1, accesses)


def warn_of_length(profiles: dict[str, TableProfile], accesses: dict[str, int], asked: str, profiled: str) -> None:
    """Say once on stderr, if it is so, that what is generated cannot have the profile's hit rates.

    Args:
        accesses: to be generated, per table.
        asked, profiled: how many of what, in the user's words.
    """
    shares = {name: (share_used_before(p, accesses[name]), share_used_before(p, p.accesses)) for name, p in
              profiles.items()}  # fmt: skip
    name = max(shares, key=lambda table: abs(shares[table][0] - shares[table][1]))
    here, there = shares[name]
    if abs(here - there) <= TOLERATED:
        return
    why = "its end adds no new ids" if accesses[name] > profiles[name].accesses else "it is like the trace's beginning"
    print(
        f"warning: {asked}, but the profile is of {profiled}: {why}. At some size a cache's hit rate is at least "
        f"{abs(here - there):.3f} off: accesses to ids used before are {100 * here:.1f} % in {name}, in the profile "
        f"{100 * there:.1f} %. Generate as many as were profiled, or profile a trace of the length you want",
        file=sys.stderr,
    )
