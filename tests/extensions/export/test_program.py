"""Exported files in a process without our code, and what their programs refuse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.checkpoint import files
from app.config import AppConfig, Interaction, ModelConfig, RuntimeConfig
from app.config.commands import TablePrecision
from app.config.tables import Pooling, QROperation, TableKind, TablesConfig
from app.scoring import served_model
from app.training import resume
from common.errors import UserError
from data_prep.dataset.format import Manifest, load_manifest
from extensions.export.program import Program, export_program, program_of, random_inputs, save
from tests.app.conftest import SMALL, Command, Refusal
from tests.app.datasets import RAGGED, RAGGED_EMBEDDINGS, write_ragged_dataset
from tests.app.scoring.test_served_model import CPU, random_model
from tests.app.scoring.test_served_model import ragged as ragged
from tests.extensions.export.test_documents import about

LOADER = """
import sys, numpy as np, torch
for name in sys.argv[3:]:
    __import__(name)
assert not [name for name in sys.modules if name.split(".")[0] in ("app", "torchrec")]
program = torch.export.load(sys.argv[1]).module()
given = np.load(sys.argv[2])
logits = {}
first = [torch.from_numpy(given[name]) for name in given if name.startswith("7_")]
first[1].view(-1)[0] += 1 << 32
try:
    program(*first)
    sys.exit("an id beyond its table was taken")
except RuntimeError:
    first[1].view(-1)[0] -= 1 << 32
for samples in ("1", "7"):
    inputs = [torch.from_numpy(given[name]) for name in given if name.startswith(samples + "_")]
    logits[samples] = program(*inputs).detach().numpy()
np.savez(sys.argv[2] + ".out.npz", **logits)
"""


@pytest.mark.slow("processes")
@pytest.mark.parametrize("tables", ["fp32", "int8"])
def test_the_file_scores_without_our_code(
    tables: str, uninterrupted: Path, run_app: Command, tmp_path: Path, runtime: Any
) -> None:
    process = run_app("export", f"run={uninterrupted}", "out=model.pt2", f"tables={tables}", "runtime.platform=cpu")
    assert json.loads(process.stdout)["largest_difference"] <= 1e-5
    assert json.loads(process.stdout)["imports"] == ([] if tables == "fp32" else ["fbgemm_gpu"])
    assert [path.name for path in tmp_path.glob("*model*")] == ["model.pt2"]
    if tables == "fp32":
        (tmp_path / "file").touch()
        done_in_vain = run_app("export", f"run={uninterrupted}", "out=file/m.pt2", "runtime.platform=cpu", status=2)
        assert "out=file/m.pt2: file is a file; choose another directory" in done_in_vain.stderr
    trained = resume.trained_config(uninterrupted, RuntimeConfig(), None)
    manifest = load_manifest(Path(trained.data.path or ""))
    checkpoint = Path(files.find_checkpoint(uninterrupted, None))
    model = served_model.load(checkpoint, trained, manifest, TablePrecision[tables], CPU)
    compare(program_of(model, manifest.num_embeddings, []), manifest, tmp_path, process.stdout)


@pytest.mark.slow("processes")
def test_a_file_of_bags(run_app: Command, tmp_path: Path, runtime: Any) -> None:
    manifest = write_ragged_dataset(tmp_path / "data", {"train": 64, "val": 9})
    few = [*SMALL, "data.path=data", "train.max_steps=2", "eval.split=val"]
    keys = [*few, "run.name=bags", "model.tables.kind=qr", "model.tables.qr_operation=concat"]
    keys += ["model.tables.min_rows=5"]
    run_app("train", *keys)
    process = run_app("export", "run=runs/bags", "out=model.pt2", "tables=int4")
    trained = resume.trained_config(tmp_path / "runs/bags", RuntimeConfig(), str(tmp_path / "data"))
    checkpoint = Path(files.find_checkpoint(tmp_path / "runs/bags", None))
    model = served_model.load(checkpoint, trained, manifest, TablePrecision.int4, CPU)
    compare(program_of(model, manifest.num_embeddings, RAGGED), manifest, tmp_path, process.stdout)


def compare(program: Program, manifest: Manifest, tmp_path: Path, exported: str) -> None:
    """model.pt2, loaded by a fresh process that has torch and what the file asks for, gives the program's logits."""
    arrays: dict[str, Any] = {}
    for samples in (1, 7):
        inputs = random_inputs(program, len(manifest.schema["dense"]), manifest.num_embeddings, samples)
        arrays |= {f"{samples}_{number}": one.numpy() for number, one in enumerate(inputs)}
    np.savez(tmp_path / "inputs.npz", **arrays)
    command = [sys.executable, "-c", LOADER, "model.pt2", "inputs.npz", *json.loads(exported)["imports"]]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    outputs = np.load(tmp_path / "inputs.npz.out.npz")
    for samples in (1, 7):
        inputs = random_inputs(program, len(manifest.schema["dense"]), manifest.num_embeddings, samples)
        np.testing.assert_allclose(outputs[str(samples)], program(*inputs).numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["out=model.bin"], "the name must end in .pt2"),
        (["out=m.pt2", "tables=bf16"], "no bf16 tables"),
        (["out=m.pt2", "tables=int2"], "int2"),
        (["out=m.pt2", "tolerance=-1"], "at least 0"),
    ],
)
def test_what_cannot_be_exported_is_said(
    refused_command: Refusal, tmp_path: Path, overrides: list[str], words: str
) -> None:
    assert words in refused_command("export", "run=runs/none", *overrides)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [TableKind.plain, pytest.param(TableKind.qr, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "precision",
    [
        TablePrecision.fp16,
        *(pytest.param(TablePrecision[name], marks=pytest.mark.slow) for name in ("fp32", "int8", "int4")),
    ],
)
def test_programs_refuse_ids_outside_their_tables(ragged: Manifest, precision: TablePrecision, kind: TableKind) -> None:
    """One id at a time, of the first and of the last feature, is moved outside; the program takes it back inside."""
    tables = TablesConfig(kind=kind, min_rows=5, qr_operation=QROperation.add if kind is TableKind.qr else None)
    model = served_model.in_precision(random_model(ragged, tables), precision, CPU)
    for multi_hot in ((), RAGGED):
        program = program_of(model, RAGGED_EMBEDDINGS, multi_hot)
        run = export_program(program, 2, RAGGED_EMBEDDINGS).module()
        dense, ids, *lengths = random_inputs(program, 2, RAGGED_EMBEDDINGS, 4)
        logits = run(dense, ids, *lengths)
        for place, rows in ((0, RAGGED_EMBEDDINGS["user"]), (-1, RAGGED_EMBEDDINGS["genres"])):
            flat = ids.view(-1)
            inside = int(flat[place])
            for outside in (-1, -2, rows, rows + 1, rows + 13, 1 << 32, -(1 << 32) + inside):
                flat[place] = outside
                with pytest.raises(RuntimeError, match="negative or beyond its table"):
                    run(dense, ids, *lengths)
            flat[place] = inside
        torch.testing.assert_close(run(dense, ids, *lengths), logits, rtol=0, atol=0)


@pytest.mark.parametrize("precision", [TablePrecision.int8, pytest.param(TablePrecision.fp32, marks=pytest.mark.slow)])
def test_programs_refuse_lengths_that_do_not_add_up(ragged: Manifest, precision: TablePrecision) -> None:
    model = served_model.in_precision(random_model(ragged, TablesConfig()), precision, CPU)
    program = program_of(model, RAGGED_EMBEDDINGS, RAGGED)
    run = export_program(program, 2, RAGGED_EMBEDDINGS).module()
    dense, ids, lengths = random_inputs(program, 2, RAGGED_EMBEDDINGS, 4)
    moved, negative = lengths.clone(), lengths.clone()
    moved[1, 0] += 1
    negative[1, 0], negative[1, 1] = -1, lengths[1, :2].sum() + 1
    for arguments in ((ids[:-1], lengths), (torch.cat([ids, ids[:1]]), lengths), (ids, moved), (ids, negative)):
        with pytest.raises(RuntimeError, match="lengths"):
            run(dense, *arguments)
    assert len(run(dense, ids, lengths)) == 4


def test_rows_looked_up_id_by_id_are_refused(ragged: Manifest) -> None:
    model = random_model(ragged, TablesConfig(pooling=Pooling.weighted))
    program = program_of(model, RAGGED_EMBEDDINGS, RAGGED)
    with pytest.raises(UserError, match=r"user, tags, item, genres: torch\.export cannot follow"):
        export_program(program, 2, RAGGED_EMBEDDINGS)


@pytest.mark.slow("examples")
@pytest.mark.parametrize(
    "interaction",
    [
        Interaction.scalar_pairs,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in Interaction if kind is not Interaction.scalar_pairs),
    ],
)
def test_every_interaction_is_exported_for_any_number_of_samples(ragged: Manifest, interaction: Interaction) -> None:
    config = AppConfig(model=ModelConfig(embedding_dim=4, dense_arch=[4], over_arch=[4, 1], interaction=interaction))
    torch.manual_seed(0)
    model = served_model.unsharded(config, ragged)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data)
    for multi_hot in ((), RAGGED):
        program = program_of(model, RAGGED_EMBEDDINGS, multi_hot)
        run = export_program(program, 2, RAGGED_EMBEDDINGS).module()
        for samples in (1, 2, 4, 5, 33):
            inputs = random_inputs(program, 2, RAGGED_EMBEDDINGS, samples)
            with torch.no_grad():
                torch.testing.assert_close(run(*inputs), program(*inputs), rtol=1e-5, atol=1e-4)


def test_a_file_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(3, 2),))
    outputs = []

    def refuse(loaded: torch.export.ExportedProgram) -> None:
        outputs.extend(loaded.module()(torch.ones(3, 2)).flatten().tolist())
        raise UserError("too far off")

    with pytest.raises(UserError, match="too far off"):
        save(exported, tmp_path / "m.pt2", about(), refuse)
    assert len(outputs) == 3
    assert list(tmp_path.iterdir()) == []
