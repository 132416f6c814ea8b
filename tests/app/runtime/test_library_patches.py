"""Changes inside TorchRec: in one module, by a call, for releases that were tried."""

import ast
from collections.abc import Iterator

import pytest
import torch
import torchrec
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen, PoolingMode
from torch import nn
from torchrec.distributed import dist_data

from app.config.train import RuntimeConfig
from app.runtime import library_patches, platform
from common.errors import UserError
from tests.app.conftest import REPOSITORY

CHANGES = {  # assignments to attributes of what is imported, by file
    "app/runtime/library_patches.py": ["dist_data._get_recat"],
    "app/launch.py": ["torch_launcher.LocalElasticAgent"],  # torchrun's own agent, in the launcher's process
    "app/model/dlrm.py": ["torch._inductor.config.compile_threads"],  # a setting
    "app/__main__.py": ["sys.argv"],
    "app/trackers.py": ["threading.excepthook"],  # the hook that Python has for it
}


@pytest.mark.parametrize(
    ("name", "version"), [("torchrec", "1.3.0"), ("torchrec", "1.10.0"), ("torchrec", "unknown"), ("torch", "2.15.0")]
)
def test_releases_that_were_not_tried_are_refused(name: str, version: str) -> None:
    with pytest.raises(UserError, match=rf"^{name} {version}: supported are .* pip install --no-deps '{name}=="):
        library_patches.require_tried(name, version)


@pytest.mark.parametrize(
    ("name", "version"),
    [("torchrec", "1.4.0"), ("torchrec", "1.9.2"), ("torchrec", "2026.10.8"), ("torch", "2.10.0.dev20251112+rocm7.1")],
)
def test_others_and_images_own_builds_are_taken(name: str, version: str) -> None:
    library_patches.require_tried(name, version)


def test_a_command_refuses_before_it_changes_or_joins_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrec, "__version__", "1.10.1")
    before = dist_data._get_recat
    with pytest.raises(UserError, match=r"^torchrec 1\.10\.1: "):
        platform.start(RuntimeConfig(num_threads=1), seed=0, deterministic=True)
    assert dist_data._get_recat is before


def test_a_process_alone_permutes_nothing_and_several_as_before(runtime: platform.Runtime) -> None:
    assert dist_data._get_recat(3, 1) is None
    assert torch.equal(dist_data._get_recat(2, 4, 1), torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]))  # of its docstring


def changed_attributes(tree: ast.AST) -> Iterator[str]:
    """Attributes of imported names that a module assigns to."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names}
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            owner: ast.expr = target
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            if isinstance(target, ast.Attribute) and isinstance(owner, ast.Name) and owner.id in names:
                yield ast.unparse(target)


@pytest.mark.medium
def test_no_other_module_changes_a_library() -> None:
    changes = {
        str(path.relative_to(REPOSITORY)): attributes
        for path in (REPOSITORY / "app").rglob("*.py")
        if (attributes := [*changed_attributes(ast.parse(path.read_text()))])
    }
    assert changes == CHANGES


def test_importing_the_program_changes_nothing() -> None:
    tree = ast.parse((REPOSITORY / "app/runtime/library_patches.py").read_text())
    at_import = [statement for statement in tree.body if not isinstance(statement, ast.FunctionDef)]
    assert not [*changed_attributes(ast.Module(at_import, []))]


@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.MEAN])
@pytest.mark.parametrize("width", [1, 6, 10])
def test_narrow_rows_are_pooled_as_by_fbgemm(width: int, pooling: PoolingMode) -> None:
    """Values and gradients; FBGEMM's own kernel for CPUs reads any width."""
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


def test_lookups_on_a_cpu_stay_fbgemms() -> None:
    tables = DenseTableBatchedEmbeddingBagsCodegen([(3, 6)], use_cpu=True)
    library_patches.replace_narrow_lookups(nn.ModuleList([tables]))
    assert "forward" not in vars(tables)
