"""Refusals of a GPU: prints {choice: error, or "" if there was none} as JSON."""

import json
from collections.abc import Callable

import fbgemm_gpu  # noqa: F401  (torch.ops.fbgemm)
import torch
import torch.distributed as dist
from torch.nn import functional as F

host, device = torch.ones(4, 4), torch.ones(4, 4, device="cuda")
ids = torch.tensor([0, 1])
MIXES: dict[str, Callable[[], object]] = {
    "add": lambda: device + host,
    "matrix product": lambda: device @ host,
    "linear layer": lambda: F.linear(host, device),
    "batched product": lambda: torch.bmm(device.unsqueeze(0), host.unsqueeze(0)),
    "concatenation": lambda: torch.cat([device, host]),
    "where": lambda: torch.where(device > 0, device, host),
    "index_select": lambda: device.index_select(0, ids),
    "device's indices of a host tensor": lambda: host[ids.cuda()],
    "embedding": lambda: F.embedding(ids, device),
    "loss": lambda: F.binary_cross_entropy_with_logits(device, host),
    "update in place": lambda: device.add_(host),
    "result in another place": lambda: torch.add(device, device, out=host),
    "FBGEMM's offsets": lambda: torch.ops.fbgemm.permute_1D_sparse_data(ids.int(), ids.int().cuda(), ids.cuda()),
}
gloo: dist.ProcessGroup
OTHERS: dict[str, Callable[[], object]] = {
    "numpy": device.numpy,
    "CPU generator": lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
    "pinned device memory": device.pin_memory,
    "gloo": lambda: dist.all_reduce(device, group=gloo),
    "a device that is not there": lambda: torch.ones(1, device="cuda:9"),
}
ALLOWED: dict[str, Callable[[], object]] = {
    "host scalar": lambda: device + torch.tensor(2.0),
    "host indices": lambda: device[ids],
    "copy": lambda: host.copy_(device),
    "device generator": lambda: torch.rand(3, device="cuda", generator=torch.Generator("cuda")),
    "nccl": lambda: dist.all_reduce(device),
}


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001  # its words are what is asked for
        return str(error) or type(error).__name__
    return ""


if __name__ == "__main__":
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    gloo = dist.new_group(backend="gloo")
    groups = {"mixes": MIXES, "others": OTHERS, "allowed": ALLOWED}
    print(json.dumps({name: {key: outcome(action) for key, action in group.items()} for name, group in groups.items()}))
