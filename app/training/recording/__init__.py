"""What a run records of its training: events, its summary, its dataset and tables, scores, figures of tables."""
