"""A worker that turns NaN is named, with its update; the others train on as they would without it."""

import collections
import dataclasses
import functools
import io
import json
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import gossip_jax as gj
from experiments import train
from experiments.runs.faults import Diverged
from experiments.runs.run_directory import RunDirectory
from experiments.tasks.data import load
from experiments.training import loop, program, run
from experiments.training.config import Config
from experiments.training.program import Programs
from experiments.training.protocols import make_optimizer
from gossip_jax import health, training
from gossip_jax.keys import Purpose

CONFIG = Config(width=8, epochs=4, p=0.5, backend="vmap", on_nan="isolate")  # 9 updates an epoch


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def programs(digits) -> Callable[..., Programs]:
    """Of workers whose gradients are multiplied by a value at certain updates; each made once."""

    @functools.cache
    def make(where: tuple[tuple[int, int], ...], value: float) -> Programs:
        key = gj.keys.run_key(CONFIG.seed)
        marks = [
            jax.random.key_data(gj.keys.derive(key, Purpose.MODEL, update, worker))
            for worker, update in where
        ]

        def make_learner(*arguments: Any) -> Any:
            task = make_healthy(*arguments)

            def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
                here = jnp.stack([(jax.random.key_data(key) == mark).all() for mark in marks]).any()
                value_of_loss, model_state = task.loss(params, model_state, batch, key)
                return value_of_loss * jnp.where(here, value, 1.0), model_state

            return task._replace(loss=loss) if marks else task

        made, make_program = Programs(digits), Programs.__call__

        def call(*arguments: Any) -> Any:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(program, "make_learner", make_learner)
                return make_program(made, *arguments)

        return call  # pyright: ignore[reportReturnType]

    make_healthy = program.make_learner
    return make


@pytest.fixture
def poison(programs, monkeypatch) -> Callable[..., None]:
    """Has workers turn NaN, or infinite, at certain updates."""

    def at(*where: tuple[int, int], value: float = np.nan) -> None:
        monkeypatch.setattr(run, "Programs", lambda _: programs(where, value))

    return at


@pytest.fixture(autouse=True)
def healthy(poison) -> None:
    """Unless a test says otherwise."""
    poison()


def go(path, dataset, **changes: Any) -> str:
    """Trains in a directory from where it is: what was shown."""
    shown = io.StringIO()
    console = Console(file=shown, width=300)
    config = dataclasses.replace(CONFIG, **changes)
    directory = RunDirectory(path)
    course, progress = train.begin(run.set_up(config, dataset), directory, console)
    train.train(course, progress, directory, console)
    return shown.getvalue()


def checkpoint(path, dataset, epoch: int, **changes: Any) -> run.Progress:
    setup = run.set_up(dataclasses.replace(CONFIG, **changes), dataset)
    return train.Journal(setup, RunDirectory(path).checkpoints).restore(epoch)


def lines(path) -> list[dict[str, Any]]:
    return [
        json.loads(line) | {"seconds": 0}
        for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def result(path) -> dict[str, Any]:
    return json.loads((path / "result.json").read_text())["result"] | {"updates_per_second": 0}


def of_worker(state: Any, worker: int) -> list[bytes]:
    return [np.asarray(leaf[worker]).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize(
    ("worker", "update", "value"),
    [(2, 10, np.nan), pytest.param(0, 18, np.inf, marks=pytest.mark.slow)],
)
def test_stop_names_the_worker_and_the_update_and_saves_the_run_as_it_was(
    worker, update, value, poison, digits, tmp_path
):
    poison((worker, update), value=value)
    said = f"worker {worker} turned NaN or infinite at update {update}, in epoch 2: stopped"
    with pytest.raises(Diverged, match=said) as error:
        go(tmp_path, digits, on_nan="stop", checkpoint_every=0)
    assert f"the run is as it was after epoch 1; to go on: {train._PROGRAM} --resume" in str(
        error.value
    )
    assert not (tmp_path / "result.json").exists()
    assert [line["epoch"] for line in lines(tmp_path)] == [1]
    assert RunDirectory(tmp_path).checkpoints.epochs() == [1]
    assert np.asarray(health.finite_workers(checkpoint(tmp_path, digits, 1).state)).all()
    # It stops there again, and goes on with another policy.
    with pytest.raises(Diverged, match=said):
        go(tmp_path, digits, on_nan="stop")
    assert f"{said.removesuffix('stopped')}isolated" in go(tmp_path, digits)
    assert result(tmp_path)["consensus_distance"] is not None


@pytest.mark.parametrize("backend", ["vmap", pytest.param("pmap", marks=pytest.mark.slow)])
def test_an_isolated_worker_infects_nobody_and_counts_no_more(backend, poison, digits, tmp_path):
    """Everybody contacts somebody at every update, so that the sickness would spread at once."""
    poison((2, 10))  # the first of epoch 2
    shown = go(tmp_path, digits, p=1.0, backend=backend)
    assert shown.count("turned NaN") == 1
    assert "worker 2 is isolated since update 10" in shown
    last = checkpoint(tmp_path, digits, 4, p=1.0, backend=backend)
    assert last.isolated == {2: 10}
    assert last.workers == [0, 1, 3]
    assert np.asarray(health.finite_workers(last.state)).all()
    before = run.set_up(dataclasses.replace(CONFIG, p=1.0, epochs=1, backend=backend), digits)
    ((first, _),) = loop.epochs_of_one(before, run.start(before))
    assert of_worker(last.state, 2) == of_worker(first.state, 2)
    assert of_worker(last.state, 1) != of_worker(first.state, 1)
    setup = run.set_up(dataclasses.replace(CONFIG, p=1.0, backend=backend), digits)
    scored = setup.program.score(last.state.params, last.state.model_state, digits.test)
    right = np.asarray(scored["accuracy"])
    assert result(tmp_path)["worker_accuracy"] == (right / len(digits.test.label)).tolist()
    others = jax.tree.map(lambda leaf: np.asarray(leaf)[[0, 1, 3]], last.state.params)
    distance = float(gj.metrics.consensus_distance(others))
    assert result(tmp_path)["consensus_distance"] == distance
    sent = last.traffic.bytes_sent
    assert sent[2] == first.traffic.bytes_sent[2] < sent[0]
    assert all(line["training_loss"] is not None for line in lines(tmp_path))


@pytest.mark.slow
def test_each_worker_is_out_from_its_own_first_sick_update(poison, digits, tmp_path):
    poison((1, 12), (3, 15), (0, 30))
    shown = go(tmp_path, digits, p=1.0)
    for worker, update, epoch in ((1, 12, 2), (3, 15, 2), (0, 30, 4)):
        said = f"worker {worker} turned NaN or infinite at update {update}, in epoch {epoch}: isolated"
        assert said in shown
    assert checkpoint(tmp_path, digits, 4, p=1.0).isolated == {1: 12, 3: 15, 0: 30}


def test_a_restarted_worker_goes_on_from_a_healthy_one(poison, digits, monkeypatch, tmp_path):
    poison((3, 27))  # the last of epoch 3
    shown = go(tmp_path, digits, on_nan="restart")
    assert "worker 3 turned NaN or infinite at update 27, in epoch 3: restarted from worker 0" in shown
    third, last = (checkpoint(tmp_path, digits, epoch, on_nan="restart") for epoch in (3, 4))
    assert of_worker(third.state, 3) == of_worker(third.state, 0)
    assert third.isolated == last.isolated == {}
    assert of_worker(last.state, 3) != of_worker(last.state, 0)
    assert np.asarray(health.finite_workers(last.state)).all()


@pytest.mark.parametrize(
    ("epoch", "policy"),
    [pytest.param(1, "isolate", marks=pytest.mark.slow), (3, "isolate"), (2, "restart")],
)
def test_a_run_with_a_sick_worker_goes_on_to_the_bit(epoch, policy, poison, digits, tmp_path):
    poison((2, 14))
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    go(whole, digits, on_nan=policy)
    go(pieces, digits, on_nan=policy, epochs=epoch)
    go(pieces, digits, on_nan=policy)
    assert lines(pieces) == lines(whole)
    assert result(pieces) == result(whole)


@pytest.mark.parametrize("every", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_how_often_a_run_is_saved_does_not_change_what_becomes_of_the_sick(
    every, poison, digits, tmp_path
):
    poison((1, 12), (3, 15), (0, 30))
    go(tmp_path / "often", digits)
    go(tmp_path / "seldom", digits, checkpoint_every=every)
    assert lines(tmp_path / "seldom") == lines(tmp_path / "often")
    assert result(tmp_path / "seldom") == result(tmp_path / "often")


@pytest.mark.parametrize("policy", [pytest.param("isolate", marks=pytest.mark.slow), "restart"])
def test_where_no_worker_is_well_the_run_stops(policy, digits, tmp_path):
    with pytest.raises(
        Diverged, match="epoch 1: no worker is well; the run is as it was after epoch 0"
    ):
        go(tmp_path, digits, on_nan=policy, learning_rate=1e30)


def test_a_healthy_run_is_the_same_under_every_policy(digits, tmp_path):
    outcomes = []
    for policy in ("stop", "isolate", "restart", "continue"):
        go(tmp_path / policy, digits, on_nan=policy, epochs=2)
        outcomes.append((lines(tmp_path / policy), result(tmp_path / policy)))
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_nothing_of_this_is_in_the_program_of_a_healthy_run(digits):
    """It is made of the instructions of `training.train_epoch`, and of no others."""
    setup = run.set_up(dataclasses.replace(CONFIG, epochs=1), digits, Programs(digits))
    list(loop.epochs_of_one(setup, run.start(setup)))
    loop.watched_epoch(setup, run.start(setup))
    plain, watched = map(opcodes, setup.program._compiled.values())

    task = program.make_learner(CONFIG.checked(), digits)

    def epoch(state: Any, shard: Any, rounds: Any, key: Any, traced: Any) -> Any:
        optimizer = make_optimizer(CONFIG, traced, setup.updates_per_epoch)
        return training.train_epoch(task.loss, optimizer, 32)(state, shard, rounds, key)

    placed: Any = setup.program.placement.map(epoch, (0, 0, None, None, None), donate_argnums=(0,))
    rounds = training.draw_rounds(setup.draw, setup.key, 1, setup.updates_per_epoch)
    arguments = run.start(setup).state, setup.shards, rounds, setup.key, setup.traced
    options = program._options(setup.program.placement)
    assert plain == opcodes(placed.lower(*arguments).compile(compiler_options=options))
    assert watched["is-finite"] > plain["is-finite"]


def opcodes(compiled: Any) -> collections.Counter[str]:
    return collections.Counter(re.findall(r" = .*? ([a-z][a-z-]*)\(", compiled.as_text()))


@pytest.mark.parametrize("backend", ["pmap", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_a_run_whose_workers_drop_out_is_the_same_on_every_backend(backend, digits, tmp_path):
    for name in ("vmap", backend):
        go(tmp_path / name, digits, drop_rate=0.4, epochs=2, backend=name)
    ours, theirs = result(tmp_path / backend), result(tmp_path / "vmap")
    assert ours["exchanges"] == theirs["exchanges"]
    # Of 360 images, an accuracy may differ by one.
    assert ours["worker_accuracy"] == pytest.approx(theirs["worker_accuracy"], abs=1.5 / 360)
    losses = [[line["training_loss"] for line in lines(tmp_path / n)] for n in (backend, "vmap")]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_workers_that_drop_out_talk_less_and_resume_to_the_bit(digits, tmp_path):
    go(tmp_path / "plain", digits)
    go(tmp_path / "whole", digits, drop_rate=0.5)
    # A contact takes two who are there.
    share = result(tmp_path / "whole")["exchanges"] / result(tmp_path / "plain")["exchanges"]
    assert 0.1 < share < 0.5
    go(tmp_path / "pieces", digits, drop_rate=0.5, epochs=2)
    go(tmp_path / "pieces", digits, drop_rate=0.5)
    assert lines(tmp_path / "pieces") == lines(tmp_path / "whole")
    assert result(tmp_path / "pieces") == result(tmp_path / "whole")


def test_drop_rate_and_isolation_are_not_for_protocols_in_which_all_wait_for_all():
    for protocol in ("all_reduce", "elastic_averaging"):
        with pytest.raises(ValueError, match=f"--drop-rate must be 0 with {protocol}; got 0.1"):
            Config(protocol=protocol, drop_rate=0.1).checked()
        with pytest.raises(ValueError, match=f"--on-nan must be stop or continue with {protocol}"):
            Config(protocol=protocol, on_nan="isolate").checked()
