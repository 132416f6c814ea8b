"""Features beside the core, one folder each. They import the core, nothing imports them, and each can be deleted."""
