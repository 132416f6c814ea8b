"""The stages of a job, one file each, in the order of `run`."""
