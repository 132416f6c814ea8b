"""One run: the loop and what it drives, the run's state, resumption and summary."""
