"""A recipe at several seeds: its runs, their figures beside the published one, the page and the document."""
