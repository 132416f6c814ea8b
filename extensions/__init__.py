"""Features beside the core, a folder each: it imports the core, nothing imports it, and it can be deleted."""
