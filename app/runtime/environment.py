"""Applying the configured profile of environment variables."""

import logging
import os

from app.config import EnvironmentConfig

log = logging.getLogger("clickwork")


def apply(config: EnvironmentConfig) -> list[str]:
    """Set the profile's variables that the user has not set; return a line about each, to be logged later.

    Call it before the first use of a GPU: ROCm reads some of them only once.
    """
    lines = []
    for name, value in config.variables.items():
        if (own := os.environ.get(name)) is None:
            os.environ[name] = value
            lines.append(f"environment: {config.name} sets {name}={value}")
        elif own != value:
            lines.append(f"environment: {config.name} would set {name}={value}; {own} of the environment stays")
    return lines
