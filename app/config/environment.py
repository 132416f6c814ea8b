"""`environment`: variables for NCCL, RCCL and ROCm, as named profiles."""

import re
from dataclasses import dataclass, field

from common.errors import UserError


@dataclass
class EnvironmentConfig:
    """Environment variables set before the process group is made; what the user has set already stays."""

    name: str = "none"
    variables: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # what each is for


def validate_environment(environment: EnvironmentConfig) -> None:
    """Raises UserError for names that are none."""
    for name in environment.variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"environment.variables.{name}: not a name of an environment variable")
