"""Values to ids and integers to floats, the same for datasets and for new rows."""
