"""Runs that are repeated with other settings: longer, shorter, on another split, from another run's checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from app.checkpoint.files import BEST, pointed_to, whole_checkpoints
from app.config.train import Precision, RuntimeConfig
from app.runtime.platform import Runtime
from app.training import checkpointer
from app.training.checkpointer import Checkpointer
from app.training.evaluator import Evaluator
from app.training.predictor import Evaluation, Predictor
from common.errors import UserError
from tests.app.conftest import Train
from tests.app.in_process import NOTHING_TO_DO, Killed, command_here
from tests.app.run_files import contents, events, summary
from tests.app.summaries import BY_AUC

RUN = Path("runs/x")


def best_of(run: Path) -> int | None:
    """The step that the pointer names."""
    path = pointed_to(run / "checkpoints", BEST)
    return None if path is None else int(path.name.removeprefix("step_"))


def set_aucs(monkeypatch: pytest.MonkeyPatch, *aucs: float) -> None:
    """Let evaluations have these AUCs, in turn."""
    measured, queue = Predictor.evaluate, iter(aucs)

    def evaluated(self: Predictor, *arguments: Any) -> Evaluation:
        result = measured(self, *arguments)
        return result._replace(figures=structs.replace(result.figures, auc=next(queue)))

    monkeypatch.setattr(Predictor, "evaluate", evaluated)


@pytest.mark.slow("examples")
def test_a_longer_run_keeps_the_best_checkpoint_of_the_shorter(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step's, which was saved before it was evaluated."""
    set_aucs(monkeypatch, 0.6, 0.7, 0.65, 0.66)
    several = ["train.eval_every_steps=3", "checkpoint.keep=1"]
    train(*several, "train.max_steps=6")
    assert best_of(RUN) == 6
    for steps in (8, 9):
        train(*several, f"train.max_steps={steps}")
        assert best_of(RUN) == 6
        assert summary(RUN)["best"] == {"step": 6, "auc": 0.7, **BY_AUC}
    assert [event["step"] for event in events(RUN, "eval")] == [3, 6, 8, 9]


@pytest.mark.medium
def test_the_summary_is_of_the_served_model(train: Train, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are the ones that evaluate finds, which takes the best too; the rest is the newest's."""
    with monkeypatch.context() as measured:
        set_aucs(measured, 0.6, 0.7, 0.65)
        train("train.max_steps=9", "train.eval_every_steps=3")
    figures, recorded = summary(RUN), {event["step"]: event for event in events(RUN, "eval")}
    assert (figures["steps"], figures["eval"]["step"], figures["last"]["step"]) == (9, 6, 9)
    for part in ("eval", "last"):
        evaluation = recorded[figures[part]["step"]]
        assert figures[part] == {key: evaluation[key] for key in figures[part] if key != "samples"} | {"samples": 501}
    assert recorded[6]["logloss"] != recorded[9]["logloss"]
    for overrides, step in (([], 6), (["checkpoint=last"], 9)):
        command_here(runtime, "evaluate", "run=runs/x", "split=val", "out=x.json", *overrides)
        scored = json.loads(Path("x.json").read_bytes())
        assert (scored["step"], scored["logloss"]) == (step, pytest.approx(recorded[step]["logloss"], rel=1e-12))


@pytest.mark.slow("examples")
def test_without_a_best_the_summary_s_evaluation_is_the_last(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed without checkpoint.keep_best keeps no best from before either."""
    several = ["train.eval_every_steps=3"]
    set_aucs(monkeypatch, 0.7, 0.6, 0.5, 0.4)
    train(*several, "train.max_steps=6")
    assert best_of(RUN) == summary(RUN)["eval"]["step"] == 3
    train(*several, "checkpoint.keep_best=false", "train.max_steps=9")
    figures = summary(RUN)
    assert best_of(RUN) is None
    assert figures["eval"] == figures["last"]
    assert figures["eval"]["step"] == 9
    assert figures["best"] == {"step": 3, "auc": 0.7, **BY_AUC}


@pytest.mark.medium
def test_a_target_ends_a_run_and_a_higher_one_goes_on(train: Train, logged: pytest.LogCaptureFixture) -> None:
    several = ["train.max_steps=40", "train.eval_every_steps=10"]
    train(*several, "train.target_auc=0.6", status="target_reached")
    assert summary(RUN)["eval"]["auc"] >= 0.6
    assert summary(RUN)["steps"] in (10, 20, 30)
    train(*several, "train.target_auc=0.6", status=NOTHING_TO_DO)
    assert "target_reached already" in logged.text
    train(*several, "train.target_auc=0.999")
    assert (summary(RUN)["status"], summary(RUN)["steps"]) == ("completed", 40)


def test_another_split_is_refused_after_the_end_too(train: Train) -> None:
    train("train.max_steps=6", "train.eval_every_steps=3")
    before = contents(Path("runs"))
    with pytest.raises(UserError, match=r"eval.split=test: runs/x evaluates val.*app.evaluate run=runs/x split=test"):
        train("train.max_steps=6", "train.eval_every_steps=3", "eval.split=test")
    assert contents(Path("runs")) == before
    assert best_of(RUN) in (3, 6)


@pytest.mark.slow("examples")
def test_fewer_samples_than_were_trained_are_refused(train: Train) -> None:
    train("train.epochs=1", "train.eval_every_steps=3", status="interrupted", fault="stop:5")
    before = contents(Path("runs"))
    with pytest.raises(UserError, match=r"train.max_samples=130: .* at step 5 already.*give train.max_samples=320 or"):
        train("train.max_samples=130")
    assert contents(Path("runs")) == before
    train("train.max_steps=5")
    assert summary(RUN)["eval"]["step"] == 5
    train("train.max_steps=4", status=NOTHING_TO_DO)


@pytest.mark.medium
def test_a_run_from_another_runs_checkpoint_keeps_its_own_best(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    set_aucs(monkeypatch, 0.9, 0.8, 0.8, 0.7, 0.65, 0.6, 0.5)
    train("train.max_steps=6", "train.eval_every_steps=3")
    other = ["run.name=y", "checkpoint.resume=runs/x", "checkpoint.keep=1"]
    train(*other, "train.max_steps=12", "train.eval_every_steps=3")
    assert summary(Path("runs/y"))["best"] == {"step": 6, "auc": 0.8, **BY_AUC}  # it evaluates where it starts
    assert best_of(Path("runs/y")) == 6
    assert [event["step"] for event in events(Path("runs/y"), "train")] == list(range(7, 13))
    restart = [*other, "train.max_steps=7", "checkpoint.overwrite=true"]
    train(*restart)
    assert [event["step"] for event in events(Path("runs/y"), "train")] == [7]
    assert summary(Path("runs/y"))["best"] == {"step": 7, "auc": 0.6, **BY_AUC}
    assert [path.name for path in whole_checkpoints(Path("runs/y/checkpoints"))] == ["step_00000007"]
    train(*restart, "train.max_steps=6", "run.name=z")  # nothing is left to train
    assert best_of(Path("runs/z")) == 6


@pytest.mark.slow("examples")
def test_going_back_forgets_a_best_whose_checkpoint_is_gone(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    set_aucs(monkeypatch, 0.7, 0.6, 0.8, 0.65)
    several = ["train.eval_every_steps=2", "checkpoint.every_steps=2", "checkpoint.keep=2"]
    train(*several, "train.max_steps=6")
    back = ["checkpoint.resume=runs/x/checkpoints/step_00000004", "checkpoint.overwrite=true", "train.max_steps=5"]
    train(*several, *back)
    assert summary(RUN)["best"] == {"step": 5, "auc": 0.65, **BY_AUC}  # step 2's 0.7 is not kept any more
    assert best_of(RUN) == 5


@pytest.mark.slow("examples")
def test_an_evaluation_of_both_splits_stands_once_after_a_kill(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the two evaluations of a step that was saved before them, then between them."""
    both = ["eval.train_split=true", "train.eval_every_steps=4", "train.max_steps=6", "checkpoint.every_steps=4"]

    def killed(*_: object) -> None:
        raise Killed

    for module, name in ((Checkpointer, "keep_best"), (Evaluator, "_compare_with_train")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, killed)
            with pytest.raises(Killed):
                train(*both)
    train(*both)
    for kind in ("eval", "eval_train"):
        assert [event["step"] for event in events(RUN, kind)] == [4, 6]


@pytest.mark.medium
def test_a_checkpoint_of_another_run_is_not_taken_for_the_runs_own(train: Train, runtime: Runtime) -> None:
    for name, lr in (("x", "0.1"), ("y", "0.2")):
        train(f"run.name={name}", f"optimizer.lr={lr}", "train.max_steps=2")
    checkpoint, other = (str(Path(f"runs/{name}/checkpoints/step_00000002")) for name in "xy")
    config = checkpointer.trained_config(RUN, RuntimeConfig(precision=Precision.bf16), None)
    assert checkpointer.open_checkpoint(RUN, checkpoint, config.data.path, runtime).state.step == 2
    with pytest.raises(UserError, match=r"runs/y/.*: was trained with optimizer.lr=0.2, and run=runs/x with 0.1; give"):
        checkpointer.open_checkpoint(RUN, other, config.data.path, runtime)


COSINE = ["schedule=cosine", "schedule.warmup_steps=2", "schedule.decay_start_step=3", "schedule.decay_steps=4"]


@pytest.mark.medium
def test_a_longer_run_does_not_train_at_rate_0(train: Train) -> None:
    """Beyond its decay; the remedy trains a run whose every step has a rate."""
    train(*COSINE, "train.max_steps=7")
    before = contents(Path("runs"))
    for longer in ("train.max_steps=10", "train.max_samples=640"):
        with pytest.raises(UserError, match=r"is 0 after step 7, .*; give another run.name and schedule.decay_steps=7"):
            train(*COSINE, longer)
    assert contents(Path("runs")) == before
    train(*COSINE, "train.max_steps=10", "run.name=y", "schedule.decay_steps=7")
    rates = {event["step"]: event["lr"] for event in events(Path("runs/y"), "train")}
    assert list(rates) == list(range(1, 11))
    assert min(rates.values()) > 0


@pytest.mark.parametrize("remedy", ["schedule.decay_steps=6", "train.max_steps=7"])
def test_a_new_run_does_not_end_at_rate_0(remedy: str, train: Train) -> None:
    cosine = [*COSINE, "train.max_steps=9"]
    with pytest.raises(UserError, match=r"give schedule\.decay_steps=6, or train.max_steps=7") as error:
        train(*cosine)
    assert remedy in str(error.value)
    assert not RUN.exists()
    train(*cosine, remedy)


@pytest.mark.medium
def test_a_part_of_a_run_resumes_to_the_end_of_its_decay(train: Train) -> None:
    train(*COSINE, "train.max_steps=7", status="interrupted", fault="stop:5")
    with pytest.raises(UserError, match=r"from the beginning, or train.max_steps=7"):
        train(*COSINE, "train.max_steps=9")
    train(*COSINE, "train.max_steps=7")


@pytest.mark.medium
@pytest.mark.parametrize(
    "schedule",
    [
        ["schedule=cosine", "schedule.decay_steps=4", "schedule.end_factor=0.1"],
        ["schedule=warmup_poly", "schedule.warmup_steps=2", "schedule.decay_start_step=3", "schedule.decay_steps=2"],
        ["schedule=warmup", "schedule.warmup_steps=2"],
    ],
)
def test_schedules_that_keep_a_rate_train_on(schedule: list[str], train: Train) -> None:
    for steps in (5, 8):
        train(*schedule, f"train.max_steps={steps}")
    assert all(event["lr"] > 0 for event in events(RUN, "train")[1:])
