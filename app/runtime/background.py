"""Threads beside training; all threads that compute are started here."""

from concurrent.futures import ThreadPoolExecutor

import torch


def background_thread(name: str, device: torch.device | None = None) -> ThreadPoolExecutor:
    """Return a pool of one thread in which torch computes without OpenMP threads of its own.

    A second team of OpenMP threads would slow training down for good: libgomp would manage more threads than there are
    processors and let each spin for less long, so that every parallel region of a step would end in a sleep and a
    wake-up.

    Args:
        name: the thread's name in a debugger or profiler.
        device: GPU that becomes the thread's current one; a new thread would start with GPU 0.
    """
    torch.get_num_threads()  # a thread that has not computed yet would take over the number set by the new one
    return ThreadPoolExecutor(1, name, initializer=_begin, initargs=(device,))


def _begin(device: torch.device | None) -> None:
    torch.set_num_threads(1)  # for this thread alone; others that have computed keep their number
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
