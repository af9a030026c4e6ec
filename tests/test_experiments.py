"""The pieces of an experiment: models as the thesis has them, and runs that can be compared."""

import dataclasses
import functools
import json
from typing import Any, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fabricated import accuracy_of

import gossip_jax as gj
from experiments.runs.records import Record
from experiments.runs.run_directory import RunDirectory
from experiments.tasks import data
from experiments.tasks.classification import classification
from experiments.tasks.models import MLP
from experiments.training import loop, run
from experiments.training.config import Config, ProtocolName
from experiments.training.program import Programs
from experiments.training.protocols import make_optimizer
from experiments.training.results import EpochMetrics, Result
from gossip_jax import traffic
from gossip_jax.protocols import SPECS

SMALL = Config(width=16, epochs=2, backend="vmap")


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@functools.cache
def programs() -> Programs:
    """Shared by all tests here, so that equal programs are compiled once."""
    return Programs(data.load("digits"))


def finish(config: Config, dataset) -> tuple[Result, list[EpochMetrics]]:
    """A run to its end; equal settings are run once."""
    assert dataset is not None
    return finish_once(config)


def workers(result: Result) -> list[float]:
    return result.scores["worker_accuracy"]


@functools.cache
def finish_once(config: Config) -> tuple[Result, list[EpochMetrics]]:
    setup = run.set_up(config, data.load("digits"), programs())
    start = progress = run.start(setup)
    metrics = []
    for progress, epoch in loop.epochs_of_one(setup, start):  # noqa: B007
        metrics.append(epoch)
    return run.result(setup, progress), metrics


def test_the_command_line_offers_every_protocol_of_the_library():
    factories = "gossip_jax.protocols."
    exported = {
        name
        for name in gj.__all__
        if getattr(getattr(gj, name), "__module__", "").startswith(factories)
    }
    assert set(SPECS) == set(get_args(ProtocolName)) == exported - {"ElasticAveragingState"}


def test_the_mlp_has_the_thesis_s_parameters_and_initial_distributions():
    params = MLP(num_classes=10).init(jax.random.key(0), jnp.zeros((1, 28, 28, 1)), train=False)[
        "params"
    ]
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == 2_913_290  # of design and thesis
    for layer in params.values():
        fan_in = layer["kernel"].shape[0]
        kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
        # He-normal: standard deviation √(2 / fan-in), and normal, so that some lie beyond 3 of it.
        np.testing.assert_allclose(kernel.std(), (2 / fan_in) ** 0.5, rtol=0.03)
        assert np.abs(kernel).max() > 3 * (2 / fan_in) ** 0.5
        assert np.abs(bias).max() <= fan_in**-0.5
    hidden_bias = np.asarray(params["Dense_1"]["bias"]) * 1024**0.5
    np.testing.assert_allclose(hidden_bias.std(), 3**-0.5, rtol=0.05)  # of uniform(±1)


def test_dropout_works_in_training_only():
    model = MLP(num_classes=10, width=64)
    images = jnp.ones((2, 8, 8, 1))
    variables = model.init(jax.random.key(0), images, train=False)

    def trained(seed) -> Any:
        return model.apply(variables, images, train=True, rngs={"dropout": jax.random.key(seed)})

    assert not np.array_equal(trained(0), trained(1))
    np.testing.assert_array_equal(trained(0), trained(0))
    scored: Any = model.apply(variables, images, train=False)
    np.testing.assert_array_equal(scored[0], scored[1])


@pytest.mark.parametrize("backend", ["pmap", pytest.param("shard_map", marks=pytest.mark.slow)])
# One of each kind: the oracles' tests take every protocol to every backend.
@pytest.mark.parametrize("protocol", ["elastic_gossip", "diloco"])
def test_a_run_is_the_same_on_every_backend(protocol, backend, digits):
    config = dataclasses.replace(SMALL, protocol=protocol, p=0.25, period=2)
    results = [
        finish(dataclasses.replace(config, backend=backend), digits) for backend in ("vmap", backend)
    ]
    (first, first_metrics), *others = results
    for result, metrics in others:
        assert result.exchanges == first.exchanges
        assert result.bytes_sent_per_worker == first.bytes_sent_per_worker
        # Replicas are equal to rounding; of 360 images, an accuracy may then differ by one.
        np.testing.assert_allclose(workers(result), workers(first), atol=1.5 / 360)
        aggregate, first_aggregate = (of.scores["aggregate_accuracy"] for of in (result, first))
        np.testing.assert_allclose(aggregate, first_aggregate, atol=1.5 / 360)
        np.testing.assert_allclose(
            result.consensus_distance, first.consensus_distance, rtol=1e-3, atol=1e-5
        )
        losses = [[epoch.training_loss for epoch in m] for m in (metrics, first_metrics)]
        np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    (first, again, other) = (
        finish_once.__wrapped__(dataclasses.replace(SMALL, seed=seed))[1] for seed in (0, 0, 1)
    )
    losses = [[epoch.training_loss for epoch in metrics] for metrics in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("protocol", ["elastic_gossip", "push_sum"])
def test_one_worker_trains_as_without_a_protocol(protocol, digits):
    alone = dataclasses.replace(SMALL, workers=1)
    losses = [
        [epoch.training_loss for epoch in finish(dataclasses.replace(alone, protocol=name), digits)[1]]
        for name in (protocol, "no_communication")
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_replicas_agree_under_all_reduce_and_part_without_communication(digits):
    together, _ = finish(dataclasses.replace(SMALL, protocol="all_reduce"), digits)
    apart, _ = finish(dataclasses.replace(SMALL, protocol="no_communication"), digits)
    assert together.consensus_distance < 1e-5 < 0.1 < apart.consensus_distance
    assert len(set(workers(together))) == 1
    scores = together.scores
    assert scores["rank0_accuracy"] == scores["worker_accuracy"][0] == scores["aggregate_accuracy"]


def test_the_bytes_of_a_run_follow_from_its_rounds_and_add_up(digits):
    config = dataclasses.replace(SMALL, p=0.5, epochs=3)
    result, metrics = finish(config, digits)
    size = 4 * ((64 + 1) * 16 + 2 * (16 + 1) * 16 + (16 + 1) * 10)  # bytes of the MLP on 64 pixels
    assert result.bytes_sent_per_worker == result.exchanges * 2 / 4 * size
    assert result.updates == 3 * (1200 // 128)
    assert [epoch.updates for epoch in metrics] == [9, 18, 27]
    assert metrics[-1].bytes_sent_per_worker == result.bytes_sent_per_worker
    all_reduce, _ = finish(dataclasses.replace(config, protocol="all_reduce"), digits)
    assert all_reduce.bytes_sent_per_worker == 27 * 2 * 3 / 4 * size
    assert all_reduce.share_of_all_reduce_bytes == 1
    assert (
        result.share_of_all_reduce_bytes
        == result.bytes_sent_per_worker / all_reduce.bytes_sent_per_worker
    )


def test_a_run_can_go_on_from_where_it_came_to(digits):
    whole, _ = finish(dataclasses.replace(SMALL, epochs=4), digits)
    half = run.set_up(dataclasses.replace(SMALL, epochs=2), digits)
    rest = run.set_up(dataclasses.replace(SMALL, epochs=4), digits)
    (*_, (progress, _)) = loop.epochs_of_one(half, run.start(half))
    (*_, (progress, _)) = loop.epochs_of_one(rest, progress)
    resumed = run.result(rest, progress)
    assert resumed.scores == whole.scores
    assert resumed.consensus_distance == whole.consensus_distance
    assert resumed.exchanges == whole.exchanges


def test_a_run_directory_writes_no_number_that_json_does_not_have(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.make()
    nan = float("nan")
    figures = Result(
        accuracy_of([nan, 0.5], nan),
        float("inf"),
        1,
        2.0,
        0.5,
        3,
        4.0,
    )
    directory.write_result(Record(Config().settings(), figures, (), []))
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["result"]
    assert result["rank0_accuracy"] is None
    assert result["worker_accuracy"] == [None, 0.5]
    assert result["consensus_distance"] is None
    assert not list((tmp_path / "run").glob("*.partial"))


def test_expected_traffic_is_what_long_runs_count():
    draw = gj.uniform_peers(4, p=1 / 8)
    params = jnp.zeros(10)
    rounds = gj.training.draw_rounds(draw, jax.random.key(0), 1, 40_000)
    counted = traffic.counted_routes(rounds, params)
    expected = traffic.expected_routes(draw, params, 40_000)
    # Six pairs, each in contact with probability q = 2 p/3 - (p/3)²; five standard deviations.
    q = 2 / 24 - 1 / 24**2
    assert expected.exchanges == pytest.approx(6 * q * 40_000)
    assert abs(counted.exchanges - expected.exchanges) < 5 * (6 * 40_000 * q) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [({"variant": "pull"}, {"variant": "push"}), ({"peers": "uniform"}, {"peers": "pairing"})],
    ids=["variant", "peers"],
)
def test_the_variant_and_the_peer_rule_reach_the_protocol(first, second, digits):
    gossip = dataclasses.replace(SMALL, protocol="gossiping_sgd", p=0.5, epochs=1)
    distances = [
        [
            epoch.consensus_distance
            for epoch in finish(dataclasses.replace(gossip, **setting), digits)[1]
        ]
        for setting in (first, second)
    ]
    assert distances[0] != distances[1]


def test_the_learning_rate_is_halved_after_the_epochs_that_say_so():
    config = dataclasses.replace(
        SMALL, protocol="no_communication", learning_rate=1.0, momentum=0.0, halve_after=(1, 3)
    )
    with jax.numpy_dtype_promotion("standard"):  # which optax's schedule needs
        optimizer = make_optimizer(config, {}, updates_per_epoch=2)
        params = jnp.zeros(())
        state, steps = optimizer.init(params), []
        for _ in range(4 * 2):
            updates, state = optimizer.update(jnp.ones(()), state, params, round=gj.Round([-1]))
            steps.append(-float(jnp.asarray(updates)))
    assert steps == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]


class Linear(nn.Module):
    """Without dropout, so that chance enters by augmentation only."""

    @nn.compact
    def __call__(self, images, train):
        return nn.Dense(10)(images.reshape(images.shape[0], -1))


@pytest.mark.parametrize("augment", [False, True])
def test_augmentation_is_for_the_loss_and_not_for_scoring(augment, digits):
    task = classification(Linear(), digits, augment)
    params, model_state = task.init(jax.random.key(0))
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:64]), digits.train)
    losses = {float(task.loss(params, model_state, batch, jax.random.key(s))[0]) for s in range(3)}
    assert len(losses) == (3 if augment else 1)
    plain = classification(Linear(), digits)
    assert task.score(params, model_state, batch) == plain.score(params, model_state, batch)


def test_training_on_a_part_takes_so_many_of_the_examples(digits):
    setup = run.set_up(dataclasses.replace(SMALL, train_examples=256), digits)
    whole = run.set_up(SMALL, digits)
    assert setup.shards.image.shape[:2] == (4, 64)
    np.testing.assert_array_equal(
        setup.shards.label.reshape(-1), np.asarray(whole.shards.label).reshape(-1)[:256]
    )
    with pytest.raises(ValueError, match="1200 examples to train on; got --train-examples 1204"):
        run.set_up(dataclasses.replace(SMALL, train_examples=1204), digits)


def test_validation_comes_every_so_many_epochs_and_last(digits):
    config = dataclasses.replace(SMALL, epochs=5, validate_every=2)
    setup = run.set_up(config, digits)
    metrics = [metrics for _, metrics in loop.epochs_of_one(setup, run.start(setup))]
    assert [one and one.epoch for one in metrics] == [None, 2, None, 4, 5]
