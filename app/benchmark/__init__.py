"""Measurements of `app.bench`: single operators, the input path, whole steps."""
