"""Locality of accesses: stack distances of a trace, and accesses generated with the same locality."""
