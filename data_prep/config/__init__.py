"""All keys of `python -m data_prep`: meanings, limits, checks of combinations, and the encodings by name."""
