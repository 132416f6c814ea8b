"""The log of the whole program, which its commands write to the terminal and into a run's directory."""

import logging

log = logging.getLogger("clickwork")
