"""Profiles of environment variables, applied."""

import logging
import os

from app.config import EnvironmentConfig

log = logging.getLogger("clickwork")


def apply(config: EnvironmentConfig) -> list[str]:
    """Set the profile's variables that the user has not set; return a line on each, to be logged later.

    Before the first look at a GPU: ROCm reads some of them once, then.
    """
    lines = []
    for name, value in config.variables.items():
        if (own := os.environ.get(name)) is None:
            os.environ[name] = value
            lines.append(f"environment: {config.name} sets {name}={value}")
        elif own != value:
            lines.append(f"environment: {config.name} would set {name}={value}; {own} of the environment stays")
    return lines
