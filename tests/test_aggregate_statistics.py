"""The mean replica has no batch-norm statistics of its own: whose it is scored with is a setting."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from experiments.runs import records
from experiments.tasks import classification, data
from experiments.training import run
from experiments.training.config import Config, completed
from experiments.training.run import Progress, Setup
from gossip_jax import metrics


class Normed(nn.Module):
    """A hidden layer with a batch norm."""

    @nn.compact
    def __call__(self, images, train):
        hidden = nn.Dense(32)(images.reshape(images.shape[0], -1))
        hidden = nn.relu(nn.BatchNorm(use_running_average=not train)(hidden))
        return nn.Dense(10)(hidden)


def set_up(monkeypatch, **settings: Any) -> Setup:
    monkeypatch.setattr(classification, "make_model", lambda *_: Normed())
    return run.set_up(Config(epochs=1, backend="vmap", **settings), data.load("digits"))


def progress_of(setup: Setup, rng: np.random.Generator, isolated: dict[int, int]) -> Progress:
    """A run whose workers saw other data than each other: their statistics are far apart."""

    def disturb(path: Any, leaf: Any) -> np.ndarray:
        drawn = (
            rng.uniform(0.1, 3, leaf.shape) if path[-1].key == "var" else rng.normal(size=leaf.shape)
        )
        return drawn.astype(np.float32)

    start = run.start(setup)
    statistics = jax.tree_util.tree_map_with_path(disturb, start.state.model_state)
    state = start.state._replace(model_state=statistics)
    return start._replace(state=state, epoch=1, seconds=1.0, isolated=isolated)


@pytest.mark.parametrize("isolated", [{}, {0: 5}], ids=["all", "without worker 0"])
def test_the_mean_replica_is_scored_with_one_worker_s_statistics_or_with_the_mean(
    isolated, monkeypatch, rng
):
    setups = {of: set_up(monkeypatch, aggregate_statistics=of) for of in ("rank0", "mean")}
    progress = progress_of(setups["mean"], rng, isolated)
    workers = np.array(progress.workers)
    params = metrics.mean_replica(jax.tree.map(lambda leaf: leaf[workers], progress.state.params))
    statistics = {
        "rank0": jax.tree.map(lambda leaf: leaf[workers[0]], progress.state.model_state),
        "mean": jax.tree.map(lambda leaf: leaf[workers].mean(axis=0), progress.state.model_state),
    }
    scored = {}
    for of, setup in setups.items():
        scored[of] = run.result(setup, progress).scores["aggregate_accuracy"]
        right = setup.program.score_one(params, statistics[of], setup.test)
        assert scored[of] == int(right["accuracy"]) / len(setup.test.label)
    assert scored["rank0"] != scored["mean"]


def test_the_thesis_s_way_is_what_a_run_has_that_does_not_say_so():
    settings = Config().checked().settings()
    assert settings["aggregate_statistics"] == "rank0"
    before = {name: value for name, value in settings.items() if name != "aggregate_statistics"}
    assert completed(before) == settings  # so records made before it was a setting are still found


def test_a_record_of_the_other_way_is_another_run_s(tmp_path):
    settings = Config().checked().settings()
    other = Config(aggregate_statistics="mean").checked().settings()
    with pytest.raises(ValueError, match="aggregate_statistics 'rank0' there, 'mean' here"):
        records.require_equal(tmp_path, settings, other)
