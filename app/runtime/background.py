"""Threads beside training: the only place that starts one that computes."""

from concurrent.futures import ThreadPoolExecutor

import torch


def background_thread(name: str, device: torch.device | None = None) -> ThreadPoolExecutor:
    """A pool of one thread in which torch computes without OpenMP threads of its own.

    A second team of OpenMP threads slows training down for good: from then on libgomp manages more threads than there
    are processors, lets each of them spin for less long, and every parallel region of a step ends in a sleep and a
    wake-up.

    Args:
        name: the thread's name in a debugger or profiler.
        device: the GPU that is the thread's current one; without it a new thread has GPU 0.
    """
    torch.get_num_threads()  # a thread that has not computed yet would take over the number set by the new one
    return ThreadPoolExecutor(1, name, initializer=_begin, initargs=(device,))


def _begin(device: torch.device | None) -> None:
    torch.set_num_threads(1)  # of this thread alone: others that have computed keep their number
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
