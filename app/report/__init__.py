"""What a person sees of runs: an HTML report of one, or several side by side."""
