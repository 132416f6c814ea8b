"""Export of a model by torch.export as a program for any batch size, which needs none of this code.

Shapes: B samples, N dense features, F sparse features, L ids.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from app.model.dlrm import DLRM
from app.model.embeddings import SparseArch
from common.documents import encode
from common.errors import UserError
from extensions.export.documents import ExportedProgram

ABOUT = "clickwork.json"
COMPARED_SAMPLES = (1, 2, 257)  # batches in which an export is compared with its model
EXAMPLE_SAMPLES = 5  # torch.export would treat 0 or 1 as constants
OUTSIDE = "ids: one is negative or beyond its table; sparse_features in clickwork.json has the rows of each"
WRONG_LENGTHS = "lengths: none may be negative, and their sum is the number of ids"


class OneIdProgram(nn.Module):
    """Program for one id a feature: dense_features [B, N] float32 and ids [B, F] int64 to logits [B] float32."""

    rows: Tensor

    def __init__(self, model: DLRM, num_embeddings: Mapping[str, int], correction: float) -> None:
        """num_embeddings: rows of the tables of the F features, in the model's order.

        correction: added to the logits.
        """
        super().__init__()
        self.model, self.features, self.correction = model, list(num_embeddings), correction
        self.register_buffer("rows", torch.tensor([*num_embeddings.values()]))

    def forward(self, dense_features: Tensor, ids: Tensor) -> Tensor:
        batch, count = ids.shape[0], len(self.features)
        _require_rows(ids, self.rows)
        bags = KeyedJaggedTensor(
            keys=self.features,
            values=ids.t().reshape(-1).int(),
            lengths=torch.ones(count * batch, dtype=torch.int32, device=ids.device),
            offsets=torch.arange(count * batch + 1, dtype=torch.int32, device=ids.device),
            stride=batch,
            length_per_key=[batch] * count,
            offset_per_key=[batch * i for i in range(count + 1)],
        )
        logits: Tensor = self.model(dense_features, bags)
        return logits + self.correction if self.correction else logits


class BagsProgram(nn.Module):
    """Program for bags: dense_features [B, N] float32, ids [L] and lengths [F, B] int64 to logits [B] float32.

    `ids` holds the bags of the first feature, sample by sample, then those of the second, and so on.
    """

    rows: Tensor

    def __init__(
        self, model: DLRM, num_embeddings: Mapping[str, int], multi_hot: Collection[str], correction: float
    ) -> None:
        """multi_hot: features whose bags may have any number of ids; the other arguments are as for OneIdProgram."""
        super().__init__()
        self.model, self.features, self.multi_hot = model, list(num_embeddings), multi_hot
        self.correction = correction
        self.register_buffer("rows", torch.tensor([*num_embeddings.values()]))

    def forward(self, dense_features: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        per_feature = lengths.sum(dim=1)
        torch._assert_async((lengths >= 0).all() & (per_feature.sum() == ids.shape[0]), WRONG_LENGTHS)
        _require_rows(ids, self.rows.repeat_interleave(per_feature, output_size=ids.shape[0]))
        flat = lengths.reshape(-1).int()
        offsets = torch.cat([flat.new_zeros(1), flat.cumsum(0, dtype=torch.int32)])
        bags = KeyedJaggedTensor(
            keys=self.features, values=ids.int(), lengths=flat, offsets=offsets, stride=lengths.shape[1]
        )
        logits: Tensor = self.model(dense_features, bags)
        return logits + self.correction if self.correction else logits


def _require_rows(ids: Tensor, rows: Tensor) -> None:
    """Make the program raise RuntimeError unless all ids are in [0, rows).

    FBGEMM's inference operator treats -1 as a pruned row, and reads whatever lies beyond the table for larger ids.
    """
    torch._assert_async(((ids >= 0) & (ids < rows)).all(), OUTSIDE)


Program = OneIdProgram | BagsProgram


def program_of(
    model: DLRM, num_embeddings: Mapping[str, int], multi_hot: Collection[str], correction: float = 0.0
) -> Program:
    """Wrap the model to take plain tensors; `multi_hot`: features whose bags may have any number of ids."""
    if multi_hot:
        return BagsProgram(model, num_embeddings, multi_hot, correction)
    return OneIdProgram(model, num_embeddings, correction)


def random_inputs(program: Program, num_dense: int, num_embeddings: Mapping[str, int], samples: int) -> tuple[Any, ...]:
    """Draw reproducible inputs for `samples` samples; bags of multi-hot features have zero to three ids."""
    draw = torch.Generator().manual_seed(samples)
    dense = torch.randn(samples, num_dense, generator=draw)
    if isinstance(program, OneIdProgram):
        columns = [torch.randint(rows, (samples,), generator=draw) for rows in num_embeddings.values()]
        return dense, torch.stack(columns, dim=1)
    lengths = torch.randint(4, (len(num_embeddings), samples), generator=draw)
    lengths[:, 0] = 2  # at least some ids
    lengths[[name not in program.multi_hot for name in num_embeddings]] = 1
    ids = [
        torch.randint(rows, (int(count),), generator=draw)
        for rows, count in zip(num_embeddings.values(), lengths.sum(dim=1), strict=True)
    ]
    return dense, torch.cat(ids), lengths


def export_program(program: Program, num_dense: int, num_embeddings: Mapping[str, int]) -> torch.export.ExportedProgram:
    """Export the program for any number of samples.

    Raises:
        UserError: a table's rows are combined or weighted id by id, which torch.export cannot follow.
    """
    arch = program.model.sparse_arch
    assert isinstance(arch, SparseArch)
    bags = isinstance(program, BagsProgram)
    by_id = [one.name for one in arch.embeddings if one.by_id or (bags and one.row_weights is not None)]
    if by_id:
        raise UserError(
            f"{', '.join(by_id)}: torch.export cannot follow rows that are combined or weighted id by id (pooling="
            "weighted, or kind=qr with qr_operation=mult, where features have several ids); evaluate and recommend can"
        )
    inputs = random_inputs(program, num_dense, num_embeddings, EXAMPLE_SAMPLES)
    batch = torch.export.Dim("samples", min=1)
    shapes: tuple[Any, ...] = ({0: batch}, {0: batch})
    if isinstance(program, BagsProgram):
        shapes = ({0: batch}, {0: torch.export.Dim("ids", min=0)}, {1: batch})
    logging.disable(logging.WARNING)  # TorchRec warns that tracing the split of bags is slow
    try:
        return torch.export.export(program.eval(), inputs, dynamic_shapes=shapes, strict=False)
    finally:
        logging.disable(logging.NOTSET)


def uses_fbgemm(exported: torch.export.ExportedProgram) -> bool:
    """Return whether the program calls FBGEMM's operators, so that its user must import fbgemm_gpu first."""
    return any(str(node.target).startswith("fbgemm.") for node in exported.graph.nodes if node.op == "call_function")


def save(
    exported: torch.export.ExportedProgram,
    path: Path,
    about: ExportedProgram,
    check: Callable[[torch.export.ExportedProgram], None],
) -> None:
    """Write the file atomically, with `about` in it as clickwork.json.

    check: called with the program read back from the file, before the file gets its name; an exception prevents that.

    Raises:
        UserError: the file cannot be written.
    """
    part = path.with_name(f".{path.stem}.part{path.suffix}")  # torch.export.save requires the suffix
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.export.save(exported, part, extra_files={ABOUT: encode(about, indent=1)})
        with part.open("rb") as file:
            os.fsync(file.fileno())
        check(torch.export.load(part))
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
        raise UserError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from error
    finally:
        with suppress(OSError):
            part.unlink()
