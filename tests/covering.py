"""Few cases in which every two values of different factors meet; values that others leave as they are."""

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence

Case = dict[str, str]


def covering_cases(
    factors: Mapping[str, Sequence[str]], is_valid: Callable[[Case], bool] = lambda case: True, seed: int = 0
) -> list[Case]:
    """Choose cases greedily until each pair of values that some valid case has is in one of them."""
    rng = random.Random(seed)
    candidates = [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]
    candidates = [case for case in candidates if is_valid(case)]
    rng.shuffle(candidates)
    missing = {pair for case in candidates for pair in itertools.combinations(case.items(), 2)}
    cases = []
    while missing:
        case = max(
            candidates, key=lambda case: sum(pair in missing for pair in itertools.combinations(case.items(), 2))
        )
        missing -= set(itertools.combinations(case.items(), 2))
        cases.append(case)
    return cases


def stable_choice(names: Sequence[str], *key: object) -> str:
    """Draw a name by the hash of each with the key, so that one more name changes only the draws that it wins."""
    return max(names, key=lambda name: hashlib.sha256(repr((name, *key)).encode()).digest())
