"""What all tests share."""

from hypothesis import settings

# A test that fails must fail again when it is run again, and a slow machine is not a bug.
settings.register_profile("clickwork", derandomize=True, deadline=None)
settings.load_profile("clickwork")
