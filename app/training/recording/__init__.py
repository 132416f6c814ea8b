"""The record of a run while it trains: events, summary, dataset and tables, scores, figures of tables."""
