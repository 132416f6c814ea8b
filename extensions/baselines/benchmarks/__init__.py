"""Benchmarks of models on users' own tables; `python -m benchmarks` lists them."""

# By program: arguments with which it runs in seconds.
QUICK = {"own_table": ["--tables", "few", "--seeds", "1", "--", "train.max_steps=20"]}
