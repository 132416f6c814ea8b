"""Generated rows: days with labels drawn by a known model, and random ids."""
