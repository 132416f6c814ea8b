"""python -m tests.pretend_cuda.programs NAME [ARGUMENT ...]: what tests run on the device besides commands."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import fbgemm_gpu  # noqa: F401  (torch.ops.fbgemm)
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn import functional as F

from app.checkpoint import saver
from tests.app.group import train_runs


def several(cases: str, out: str) -> None:
    """Train a run of each list of overrides in the file, and write their summaries."""
    train_runs(json.loads(Path(cases).read_text(encoding="utf-8")), out)


def staging(*overrides: str) -> None:
    """app.train whose checkpoints come from the device in blocks of 64 bytes; print the device of each save."""
    save = dcp.save

    def reporting(*arguments: object, **keywords: object) -> object:
        sys.stdout.write(f"saved with GPU {torch.cuda.current_device()}\n")  # whole: two processes write to one pipe
        sys.stdout.flush()
        return save(*arguments, **keywords)

    saver.COPY_BYTES = 64
    vars(dcp)["save"] = reporting
    sys.argv = ["app.train", *overrides]
    runpy.run_module("app.train", run_name="__main__", alter_sys=True)


def refusals() -> None:
    """Print {kind: {action: error, or "" if there was none}} as JSON."""
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    gloo = dist.new_group(backend="gloo")
    host, device = torch.ones(4, 4), torch.ones(4, 4, device="cuda")
    ids = torch.tensor([0, 1])
    actions: dict[str, dict[str, Callable[[], object]]] = {
        "mixes": {
            "add": lambda: device + host,
            "linear layer": lambda: F.linear(host, device),
            "concatenation": lambda: torch.cat([device, host]),
            "index_select": lambda: device.index_select(0, ids),
            "device's indices of a host tensor": lambda: host[ids.cuda()],
            "update in place": lambda: device.add_(host),
            "result in another place": lambda: torch.add(device, device, out=host),
            "FBGEMM": lambda: torch.ops.fbgemm.permute_1D_sparse_data(ids.int(), ids.int().cuda(), ids.cuda()),
        },
        "others": {
            "numpy": device.numpy,
            "CPU generator": lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
            "pinned device memory": device.pin_memory,
            "gloo": lambda: dist.all_reduce(device, group=gloo),
            "a device that is not there": lambda: torch.ones(1, device="cuda:9"),
        },
        "allowed": {
            "host scalar": lambda: device + torch.tensor(2.0),
            "host indices": lambda: device[ids],
            "copy": lambda: host.copy_(device),
            "device generator": lambda: torch.rand(3, device="cuda", generator=torch.Generator("cuda")),
            "nccl": lambda: dist.all_reduce(device),
        },
    }

    def outcome(action: Callable[[], object]) -> str:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # its words are what is asked for
            return str(error) or type(error).__name__
        return ""

    print(json.dumps({kind: {key: outcome(action) for key, action in of.items()} for kind, of in actions.items()}))


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"several": several, "staging": staging, "refusals": refusals}
    programs[sys.argv[1]](*sys.argv[2:])
