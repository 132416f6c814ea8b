"""What the groups' checks have in common."""

import math
from collections.abc import Mapping

from common.errors import UserError


def require_at_least(values: Mapping[str, tuple[float | None, float]]) -> None:
    """Each key's value, unless null, against the least that is allowed.

    Raises:
        UserError: names the first key whose value is too small.
    """
    for key, (value, least) in values.items():
        if value is not None and value < least:
            raise UserError(f"{key}={value}: must be at least {least}")


def require_positive(values: Mapping[str, float | None]) -> None:
    """Each key's value, unless null, must be finite and above 0.

    Raises:
        UserError: names the first key whose value is not.
    """
    for key, number in values.items():
        if number is not None and not 0 < number < math.inf:
            raise UserError(f"{key}={number}: must be a finite number above 0")
