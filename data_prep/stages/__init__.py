"""The stages of a job, in the order of `pipeline.run_stages`: parse, vocabulary, order, encode, scatter, gather."""
