"""Synthetic accesses with the locality of a profile, as text traces (docs/locality.md).

    clickwork generate-trace locality.profile=FILE.npz locality.to=DIRECTORY [locality.accesses=N] [locality.seed=0]

One file per table, an id a line; as many accesses as the profiled trace had, or N. `python -m data_prep
data.source=trace` makes a dataset instead.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["generate-trace"])


from pathlib import Path

import numpy as np

from common.cli import EXIT_DONE
from common.files import temporary_path
from extensions.locality.histogram import load_profiles
from extensions.locality.keys import GenerateConfig
from extensions.locality.sampler import AccessGenerator, warn_of_length

PIECE = 1 << 20


def main(config: GenerateConfig) -> int:
    """Generate as configured, and return an exit status."""
    locality = config.locality
    profiles, _ = load_profiles(Path(locality.profile))
    directory = Path(locality.to)
    directory.mkdir(parents=True, exist_ok=True)
    if locality.accesses is not None:
        longest = max(profile.accesses for profile in profiles.values())
        accesses = dict.fromkeys(profiles, locality.accesses)
        warn_of_length(profiles, accesses, f"locality.accesses={locality.accesses}", f"{longest:,} accesses")
    for number, (name, profile) in enumerate(profiles.items()):
        generator = AccessGenerator(profile, (locality.seed, number))
        path = directory / f"{name}.txt"
        temporary = temporary_path(path)
        remaining = locality.accesses or profile.accesses
        with open(temporary, "w") as file:
            while remaining:
                count = min(remaining, PIECE)
                np.savetxt(file, generator.draw(count), fmt="%d")
                remaining -= count
        temporary.replace(path)
        print(f"{path}: {locality.accesses or profile.accesses:,} accesses")
    return EXIT_DONE
