"""Views of a run for other tools: TensorBoard, and the trackers that extensions add."""
