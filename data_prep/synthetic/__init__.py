"""Rows made here: days with a known ground-truth model, and random ids."""
