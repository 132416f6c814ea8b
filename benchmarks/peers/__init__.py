"""Other projects on the same work: see README.md."""
