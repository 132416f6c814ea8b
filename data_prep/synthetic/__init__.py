"""Rows made from a formula: days with a known ground-truth model, and random ids; `traces` imitates given accesses."""
