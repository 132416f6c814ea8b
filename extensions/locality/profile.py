"""Locality profile of a dataset's ids or of a text trace: stack distances per table (docs/locality.md).

    clickwork profile-trace locality.trace=DATASET locality.profile=OUT.npz [locality.split=train]
    clickwork profile-trace locality.trace='[cat_0.txt,cat_1.txt]' locality.profile=OUT.npz

A text trace has one file per table: the ids in the order of the accesses, separated by spaces, commas or lines.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["profile-trace"])


from pathlib import Path

from common.cli import EXIT_DONE
from common.limits import usable_cpus
from extensions.locality.accesses import profile_accesses
from extensions.locality.histogram import save_profiles
from extensions.locality.keys import ProfileConfig


def main(config: ProfileConfig) -> int:
    """Profile as configured, and return an exit status."""
    locality = config.locality
    profiles, rows = profile_accesses(locality.trace, locality.split, usable_cpus())
    save_profiles(Path(locality.profile), profiles, rows)
    for name, profile in profiles.items():
        print(f"{name}: {profile.accesses:,} accesses to {profile.distinct:,} of {profile.num_embeddings:,} rows")
    print(f"{locality.profile}: {len(profiles)} tables, {rows:,} samples")
    return EXIT_DONE
