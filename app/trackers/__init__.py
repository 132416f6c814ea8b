"""Views of a run for other tools: TensorBoard, MLflow, Weights & Biases, Prometheus, the MLPerf log."""
