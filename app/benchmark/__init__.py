"""What `app.bench` measures: single operators, the input path, whole steps, and the machine's own limits."""
