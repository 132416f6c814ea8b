"""Raw rows to numbers and ids, with NumPy and pyarrow alone: an export has a copy of this package."""
