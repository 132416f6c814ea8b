"""The arithmetic, the libraries, the environment and the network of a process, and the threads beside training."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen, PoolingMode

from app.config.app_config import CONFIG_DIR
from app.runtime import environment, library_patches, platform
from app.runtime.platform import READING, check_precision, reporting_failures, require_strict_products
from common.cli import EXIT_LOST
from common.errors import LostPeerError, UserError
from tests.app.conftest import REPOSITORY, composed, ended, forked
from tests.app.machines import ADDRESSES, ip, two_machines
from tests.error_lines import refused


def test_tf32_is_of_gpus() -> None:
    check_precision("tf32", "cuda")
    refused(r"^runtime\.precision=tf32: CPUs do not support it", check_precision, "tf32", "cpu")


@pytest.fixture
def threads() -> Iterator[None]:
    """Set the number of threads back after the test."""
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


def products(number: int) -> list[torch.Tensor]:
    """Return outputs and gradients of layers of many widths on so many threads, from other values than the probe's."""
    torch.set_num_threads(number)
    rows, results = platform.PROBED_ROWS, []
    for num_in, num_out in itertools.product(*platform.PROBED_WIDTHS):
        generator = torch.Generator().manual_seed(num_in * 10_000 + num_out)
        inputs = torch.randn(rows, num_in, generator=generator, requires_grad=True)
        weight = torch.randn(num_out, num_in, generator=generator, requires_grad=True)
        outputs = inputs @ weight.T
        outputs.backward(torch.randn(rows, num_out, generator=generator))
        results += [outputs.detach(), *(each.grad for each in (inputs, weight) if each.grad is not None)]
    return results


@pytest.mark.medium
@pytest.mark.usefixtures("threads")
def test_products_do_not_depend_on_threads_or_several_are_refused() -> None:
    require_strict_products(1)
    if not platform.are_equal_on_threads(2):
        refused(r"^runtime\.num_threads=2: not with .* give runtime\.num_threads=1", require_strict_products, 2)
        return
    assert all(map(torch.equal, products(1), products(2)))


@pytest.mark.parametrize(("name", "version"), [("torchrec", "1.3.0"), ("torchrec", "unknown"), ("torch", "2.15.0")])
def test_releases_that_were_not_tried_are_refused(name: str, version: str) -> None:
    library_patches.require_tried("torchrec", "2026.10.8")  # an image's own build
    with pytest.raises(UserError, match=rf"^{name} {version}: supported are .* pip install --no-deps '{name}=="):
        library_patches.require_tried(name, version)


@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.MEAN])
@pytest.mark.parametrize("width", [1, 6, 10])
def test_narrow_rows_are_pooled_as_by_fbgemm(width: int, pooling: PoolingMode) -> None:
    tables = DenseTableBatchedEmbeddingBagsCodegen(
        [(rows, width) for rows in (7, 1, 30)], feature_table_map=[0, 1, 1, 2], pooling_mode=pooling, use_cpu=True
    )
    generator = torch.Generator().manual_seed(width)
    lengths = torch.randint(0, 4, (4, 5), generator=generator)
    lengths[1:3, 0] = 0
    rows = torch.tensor([7, 1, 1, 30]).repeat_interleave(lengths.sum(1))
    ids = torch.randint(0, 1 << 20, (len(rows),), generator=generator) % rows
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    factors = torch.rand(5, 4 * width, generator=generator)
    results = []
    for vectors in (tables(ids, offsets, None), library_patches.pool_rows(tables, ids, offsets)):
        (gradient,) = torch.autograd.grad((vectors * factors).sum(), tables.weights)
        results.append((vectors, gradient))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


PROFILES = sorted(path.stem for path in (CONFIG_DIR / "environment").glob("*.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_every_variable_has_its_reason(name: str) -> None:
    profile = composed(f"environment={name}").environment
    assert profile.name == name
    assert set(profile.variables) == set(profile.reasons)
    assert all(profile.reasons.values())


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = composed("environment=amd_node", "+environment.variables.NCCL_SOCKET_IFNAME=eth7").environment
    for variable in profile.variables:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "2")
    lines = environment.apply(profile)
    expected = {"GPU_MAX_HW_QUEUES": "2", "NCCL_SOCKET_IFNAME": "eth7", "HSA_NO_SCRATCH_RECLAIM": "1"}
    assert {name: os.environ[name] for name in expected} == expected
    assert "environment: amd_node would set GPU_MAX_HW_QUEUES=4; 2 of the environment stays" in lines
    assert "environment: amd_node sets HSA_NO_SCRATCH_RECLAIM=1" in lines
    for variable in profile.variables:
        os.environ.pop(variable, None)  # what apply set, which monkeypatch would put back


@pytest.mark.medium
def test_who_reads_a_run_says_so_too(uninterrupted: Path, tmp_path: Path) -> None:
    keys = [f"run={uninterrupted}", "split=val", "global_batch_size=64", "runtime.num_threads=1"]
    forks = forked("evaluate", *keys, "runtime.platform=cpu", cwd=tmp_path, processes=2, fault="process 1 is lost:2")
    result = ended(forks, tmp_path)
    assert [fork.exitcode for fork in forks] == [EXIT_LOST, -signal.SIGKILL], result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "another process is lost" in line]
    assert line.startswith("error: process 0: ")
    assert line.endswith("; start the same command again")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46812",
        "NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error",
    ],
)
def test_what_a_lost_process_looks_like(words: str) -> None:
    with pytest.raises(LostPeerError, match="process 3: another process is lost"), reporting_failures(3, 1.0, READING):
        raise RuntimeError(words)


WAYS = """
import json, sys
from app.runtime import environment as network
from common.errors import UserError
for host in sys.argv[1:]:
    try:
        print(json.dumps(network.route_to(host)))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def test_the_route_decides_among_interfaces() -> None:
    with two_machines() as (host, other):
        ip("link", "add", "storage0", "netns", host, "type", "veth", "peer", "name", "storage0", "netns", other)
        ip("-n", host, "addr", "add", "10.214.0.1/24", "dev", "storage0")
        for name in (host, other):
            ip("-n", name, "link", "set", "storage0", "up")
        command = ["ip", "netns", "exec", host, sys.executable, "-c", WAYS]
        command += [ADDRESSES[1], "10.214.0.2", ADDRESSES[0], "127.0.1.1", "203.0.113.9"]
        output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        assert [json.loads(line) for line in output.splitlines()] == [
            [ADDRESSES[0], host, False],
            ["10.214.0.1", "storage0", False],
            [ADDRESSES[0], host, True],
            [ADDRESSES[0], host, True],  # what others reach, not loopback
            "203.0.113.9: no route to 203.0.113.9 from this machine; give another address, or check its network",
        ]
