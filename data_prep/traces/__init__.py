"""Locality of given accesses: profiles of stack distances, and rows with the same; `synthetic` needs no example."""
