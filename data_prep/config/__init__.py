"""Every key of `python -m data_prep`: meanings, limits, what does not go together, the encodings by name."""
