"""Benchmarks of exported models; `python -m benchmarks` lists them."""

# By program: arguments with which it runs in seconds.
QUICK = {"serving": ["--rows=1000", "--seconds=0.2"]}
