"""Keys of the configuration, and kinds of models, metrics and others by name."""
