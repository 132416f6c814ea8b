"""Benchmarks of logs of events and HSTU; `python -m benchmarks` lists them."""

# By program: arguments with which it runs in seconds.
QUICK = {
    "events": ["--events=20000", "--rounds=1", "--workers=1"],
    "sequences": ["--users=60", "--seeds", "1"],
}
