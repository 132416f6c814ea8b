"""What the synthetic data are for: better models get nearer to the best possible scores, which are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from tests.app.conftest import Command
from tests.app.run_files import summary
from tests.data_prep.conftest import load_split, prepare

ROWS, BATCH = 350_000, 1024
TRAIN = ["model.dense_arch=[64,16]", "model.over_arch=[64,1]", "optimizer=adagrad", "optimizer.lr=0.02"]
TRAIN += ["optimizer.sparse_lr=0.04", "schedule=cosine", f"train.global_batch_size={BATCH}", "runtime.num_threads=1"]
TRAIN += ["eval.split=test", "runtime.platform=cpu"]


def one_hot(root: Path, split: str, sizes: list[int]) -> Any:
    labels, dense, ids = load_split(root, split)
    ids = ids + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    hot = sparse.csr_matrix((np.ones(ids.size, np.float32), ids.ravel(), starts), (len(ids), sum(sizes)))
    return sparse.hstack([hot, sparse.csr_matrix(dense / 8)]).tocsr(), labels


@pytest.mark.slow("examples")
def test_models_come_in_the_expected_order(tmp_path: Path, run_app: Command) -> None:
    """Logistic regression, an MLP without products, DLRM, DCN v2, the truth; margins are half of what was measured.

    Only `difficulty` is not the default: it is halved, so that few rows suffice (default: docs/synthetic.md).
    """
    root = tmp_path / "data"
    overrides = [f"data.synthetic.rows={ROWS}", "data.synthetic.difficulty=0.5", "data.synthetic.direct=true"]
    manifest = prepare("data.source=synthetic", f"data.path={root}", *overrides)
    truth = manifest.extra["bayes"]["splits"]["test"]["sampled_auc"]
    sizes = list(manifest.num_embeddings.values())
    model = LogisticRegression(C=0.1, max_iter=40, tol=1e-2).fit(*one_hot(root, "train", sizes))
    features, labels = one_hot(root, "test", sizes)
    auc = {"lr": roc_auc_score(labels, model.decision_function(features)), "truth": truth}
    steps = manifest.splits["train"].rows // BATCH
    for interaction, more in (("cat", []), ("dot", []), ("dcn", ["model.dcn_num_layers=2"])):
        model_keys = [*more, f"model.interaction={interaction}", f"schedule.decay_steps={steps}"]
        run_app("train", f"data.path={root}", *TRAIN, *model_keys, f"run.name={interaction}")
        auc[interaction] = summary(tmp_path / f"runs/{interaction}")["eval"]["auc"]
    assert auc["lr"] + 0.02 < auc["cat"], auc
    assert auc["cat"] + 0.009 < auc["dot"], auc
    assert auc["dot"] + 0.005 < auc["dcn"], auc
    assert auc["dcn"] + 0.009 < auc["truth"], auc
    assert auc["truth"] - auc["dot"] < 0.06, auc
