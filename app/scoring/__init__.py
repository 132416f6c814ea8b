"""A trained model applied to new rows: candidates, ranking, export as one program."""
