"""Application of the configured profile of environment variables."""

import logging
import os

from app.config import EnvironmentConfig

log = logging.getLogger("clickwork")

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SET_BY_LAUNCHER = "CLICKWORK_SET_BY_LAUNCHER"  # names of variables that app.launch has set; a profile may replace them
OF_NETWORKS = ("NCCL_", "RCCL_", "GLOO_")  # beginnings of names that a single process has no use for


def apply(config: EnvironmentConfig, with_networks: bool = True) -> list[str]:
    """Set the profile's variables that the user has not set; return a line about each, to be logged later.

    Call it before the first use of a GPU: ROCm reads some of them only once.

    Args:
        config: the profile.
        with_networks: whether to set networks' variables too, which fit the machines that a run was trained on.
    """
    lines, replaced = [], os.environ.get(SET_BY_LAUNCHER, "").split()
    for name, value in config.variables.items():
        if not with_networks and name.startswith(OF_NETWORKS):
            continue
        if (user_value := os.environ.get(name)) is None or name in replaced:
            os.environ[name] = value
            lines.append(f"environment: {config.name} sets {name}={value}")
        elif user_value != value:
            lines.append(f"environment: {config.name} would set {name}={value}; {user_value} of the environment stays")
    return lines
