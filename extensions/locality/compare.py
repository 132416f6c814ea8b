"""How far apart the locality of two traces is: per table, and hit rates of LRU caches as a plot.

    clickwork compare-traces locality.trace=ONE locality.other=TWO [locality.plot=FILE.svg] [locality.split=train]

ONE and TWO are datasets, profiles (.npz) or text traces with the same tables. Of each table it prints the
Kolmogorov-Smirnov distance of the stack distances, which is the greatest difference in the hit rate of an LRU cache
of any size. A profile has distances from 256 on in bins: the distance to it is then one of a range.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["compare-traces"])


from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.cli import EXIT_DONE
from common.errors import UserError
from common.files import write_atomically
from common.limits import usable_cpus
from extensions.locality.accesses import profile_accesses
from extensions.locality.histogram import BIN_STARTS, KSDistance, TableProfile, distance_between, joint_hit_rates
from extensions.locality.keys import CompareConfig
from extensions.locality.svg import Line, line_chart


def main(config: CompareConfig) -> int:
    """Compare as configured, and return an exit status."""
    locality = config.locality
    one, other = locality.trace, locality.other
    first, second = (profile_accesses(source, locality.split, usable_cpus(), True)[0] for source in (one, other))
    sides = {str(one): first, str(other): second}
    if list(first) != list(second):
        raise UserError(
            f"locality.other={other}: its tables are {list(second)}, not {list(first)}; compare like traces"
        )
    print(f"{'table':>12} {'accesses':>12} {'accesses':>12} {'distinct':>12} {'distinct':>12}  KS distance")
    distances: list[KSDistance] = []
    for name, a in first.items():
        b = second[name]
        distances.append(distance_between([a], [b]))
        counts = (a.accesses, b.accesses, a.distinct, b.distinct)
        print(f"{name:>12} {' '.join(f'{count:>12,}' for count in counts)}  {distances[-1]}")
    together = distance_between(list(first.values()), list(second.values()))
    print(f"largest of {len(first)} tables: {largest(distances)}; of all accesses together: {together}")
    if locality.plot is not None:
        write_atomically(Path(locality.plot), plot(sides).encode())
        print(f"{locality.plot}: hit rates of LRU caches")
    return EXIT_DONE


def largest(distances: Sequence[KSDistance]) -> KSDistance:
    """Return the largest of several distances."""
    return KSDistance(max(each.low for each in distances), max(each.high for each in distances))


def plot(sides: dict[str, dict[str, TableProfile]]) -> str:
    """Draw an SVG with a line per trace: hit rate over all accesses, by rows cached of each table."""
    largest = max(profile.distinct for profiles in sides.values() for profile in profiles.values())
    num_bins = int(np.searchsorted(BIN_STARTS, max(largest, 2))) + 1
    lines = [
        Line(name, BIN_STARTS[1:num_bins].tolist(), joint_hit_rates(list(profiles.values()))[: num_bins - 1].tolist())
        for name, profiles in sides.items()
    ]
    return line_chart("Hit rate of LRU caches", "rows cached of every table", "hit rate", lines)
