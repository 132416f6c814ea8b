"""Pages about runs for people: an HTML report of one run, or several runs side by side."""
