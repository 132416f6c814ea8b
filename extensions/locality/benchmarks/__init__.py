"""Benchmarks of the locality of traces; `python -m benchmarks` lists them."""

# By program: arguments with which it runs in seconds.
QUICK = {"locality": ["--rows=100000", "--accesses=100000", "--runs=1"]}
