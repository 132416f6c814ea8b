"""Locality of given accesses: profiles of their stack distances, and rows generated with the same locality."""
