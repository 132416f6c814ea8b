"""One run: session, loop, its state and length, the data loader and the pipeline."""
