"""app.train whose checkpoints come from the device in blocks of 64 bytes; prints the thread's device at each save."""

import runpy
import sys

import torch
import torch.distributed.checkpoint as dcp

from app.checkpoint import saver

save = dcp.save


def reporting(*arguments: object, **keywords: object) -> object:
    sys.stdout.write(f"saved with GPU {torch.cuda.current_device()}\n")  # whole: two processes write to one pipe
    sys.stdout.flush()
    return save(*arguments, **keywords)


if __name__ == "__main__":
    saver.COPY_BYTES = 64
    vars(dcp)["save"] = reporting
    runpy.run_module("app.train", run_name="__main__", alter_sys=True)
