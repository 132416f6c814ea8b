"""A run's directory: what made the run, its events and figures, its progress on a terminal."""
