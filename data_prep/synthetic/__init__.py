"""Rows generated from a formula: days whose labels a known ground-truth model draws, and random ids."""
