"""Locality profile of a dataset's ids or of a text trace: stack distances per table (docs/synthetic.md).

    python -m data_prep.profile locality.trace=DATASET locality.profile=OUT.npz [locality.split=train]
    python -m data_prep.profile locality.trace='[cat_0.txt,cat_1.txt]' locality.profile=OUT.npz

A text trace has one file per table: the ids in the order of the accesses, separated by spaces, commas or lines.
"""

if __name__ == "__main__":  # first: what is imported below may take seconds
    from common.cli import run
    from data_prep.commands import COMMANDS

    run(COMMANDS["profile-trace"])


from pathlib import Path

from common.cli import EXIT_DONE
from common.limits import usable_cpus
from data_prep.config.agreement import refuse_unused
from data_prep.config.keys import PrepConfig, required
from data_prep.traces.accesses import profile_accesses
from data_prep.traces.histogram import save_profiles


def main(config: PrepConfig) -> int:
    """Profile as configured; an exit status."""
    refuse_unused(config, ("locality.trace", "locality.profile", "locality.split"))
    locality = config.locality
    trace, target = required("locality.trace", locality.trace), required("locality.profile", locality.profile)
    profiles, rows = profile_accesses(trace, locality.split, usable_cpus())
    save_profiles(Path(target), profiles, rows)
    for name, profile in profiles.items():
        print(f"{name}: {profile.accesses:,} accesses to {profile.distinct:,} of {profile.num_embeddings:,} rows")
    print(f"{target}: {len(profiles)} tables, {rows:,} samples")
    return EXIT_DONE
