"""The states of all random generators of a process, as arrays for a checkpoint."""

import random

import numpy as np
import torch
from numpy.typing import NDArray


def capture(device: torch.device) -> dict[str, NDArray[np.uint8]]:
    """Return each generator's state as bytes [n]; n is the same on every process."""
    _, words, gauss = random.getstate()
    # The global generator is the one that libraries use.
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    states = {
        "rng_torch": torch.get_rng_state().numpy(),
        "rng_python": _bytes(np.array(words, np.uint32), np.array([np.nan if gauss is None else gauss])),
        "rng_numpy": _bytes(np.array([*keys, position, has_gauss], np.uint32), np.array([cached])),
    }
    if device.type == "cuda":
        states["rng_device"] = torch.cuda.get_rng_state(device).numpy()
    return states


def restore(states: dict[str, NDArray[np.uint8]], device: torch.device) -> None:
    """Set each generator to a captured state; keep the device's if the captured device was of another kind."""
    torch.set_rng_state(torch.from_numpy(states["rng_torch"]))
    words, (gauss,) = _words(states["rng_python"])
    random.setstate((3, tuple(map(int, words)), None if np.isnan(gauss) else float(gauss)))
    words, (cached,) = _words(states["rng_numpy"])
    state = ("MT19937", words[:-2], int(words[-2]), int(words[-1]), float(cached))
    np.random.set_state(state)  # noqa: NPY002
    if device.type == "cuda" and "rng_device" in states:
        torch.cuda.set_rng_state(torch.from_numpy(states["rng_device"]), device)


def _bytes(words: NDArray[np.uint32], floats: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.frombuffer(words.tobytes() + floats.tobytes(), np.uint8)


def _words(content: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    return content[:-8].copy().view(np.uint32), content[-8:].copy().view(np.float64)
