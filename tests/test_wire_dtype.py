"""What is sent in a narrower type: half the bytes, moves that stay opposite, and what it costs."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import BACKENDS, telling_peers
from hlo import collectives, computations

import gossip_jax as gj
from experiments import demo
from experiments.tasks import data
from experiments.training import loop, run
from experiments.training.program import Programs
from gossip_jax import traffic

PROTOCOLS = {
    "elastic_gossip": (
        lambda wire: gj.elastic_gossip(0.3, wire_dtype=wire),
        reference.elastic_gossip(0.3),
    ),
    "pull": (lambda wire: gj.gossiping_sgd("pull", wire_dtype=wire), reference.gossiping_sgd_pull),
    "push": (lambda wire: gj.gossiping_sgd("push", wire_dtype=wire), reference.gossiping_sgd_push),
}


def communicate(protocol: Any, backend: Any, num_workers: int) -> Any:
    """From stacked parameters and a round to the parameters moved, without local updates."""

    def move(theta, round):
        updates = jax.tree.map(jnp.zeros_like, theta)
        updates, _ = protocol.update(updates, (), theta, round=round)
        return jax.tree.map(jnp.add, theta, updates)

    return gj.place(num_workers, backend).map(move, (0, None))


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_gossip_keeps_the_sum_to_rounding_of_the_parameters(backend, wire_dtype, rng):
    """And not only of the wire type, which is a thousand times coarser: both go by what was sent."""
    move = communicate(gj.elastic_gossip(0.5, wire_dtype=wire_dtype), backend, 5)
    theta = rng.uniform(-1, 1, (5, 40)).astype(np.float32)
    for peer in telling_peers(rng, 5):
        moved = np.asarray(move(theta, gj.Round(peer)), np.float64)
        np.testing.assert_allclose(moved.sum(axis=0), theta.sum(axis=0, dtype=float), rtol=0, atol=1e-5)
        assert (moved != theta).any() == (peer >= 0).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_moves_are_those_of_the_rounded_replicas(name, backend, rng):
    make, oracle = PROTOCOLS[name]
    move = communicate(make("bfloat16"), backend, 4)
    theta = rng.normal(size=(4, 30)).astype(np.float32)
    rounded = theta.astype(jnp.bfloat16).astype(np.float32)
    for peer in telling_peers(rng, 4):
        want, _ = oracle(peer, 1, rounded, np.zeros_like(theta), None)
        np.testing.assert_allclose(
            move(theta, gj.Round(peer)), theta + (want - rounded), rtol=0, atol=2e-6
        )


@pytest.mark.parametrize("name", PROTOCOLS)
def test_replicas_that_agree_stay_as_they_are_to_the_bit(name, rng):
    move = communicate(PROTOCOLS[name][0]("bfloat16"), "vmap", 4)
    theta = np.broadcast_to(rng.normal(size=30).astype(np.float32), (4, 30))
    for peer in telling_peers(rng, 4):
        np.testing.assert_array_equal(move(theta, gj.Round(peer)), theta)


@pytest.mark.parametrize("backend", ["pmap", "shard_map"])
def test_all_that_travels_is_as_wide_as_the_wire_type(backend):
    """Also the small leaves, which travel together, and one whose own type is narrow already."""
    move = communicate(gj.elastic_gossip(0.5, wire_dtype="bfloat16"), backend, 4)
    theta = {
        "large": jnp.zeros((4, 300, 301)),
        "small": jnp.zeros((4, 7)),
        "smaller": jnp.zeros((4, 3)),
        "narrow": jnp.zeros((4, 5), jnp.bfloat16),
    }
    program = move.lower(theta, gj.Round([-1] * 4)).compile().as_text()
    sent = [i for part in computations(program)[0].values() for i in collectives(part)]
    sizes = {re.sub(r"\{.*?\}", "", i.shape) for i in sent}
    assert sizes == {"u16[300,301]", "u16[10]", "u16[5]"}


def test_half_as_wide_is_half_the_bytes():
    params = {"kernel": jnp.zeros((3, 5)), "bias": jnp.zeros(5)}
    rounds = gj.Round([[1, -1], [-1, -1], [1, 0]])
    whole, half = (traffic.counted_routes(rounds, params, wire) for wire in (None, "bfloat16"))
    assert half.exchanges == whole.exchanges == 2
    np.testing.assert_array_equal(2 * half.bytes_sent, whole.bytes_sent)
    draw = gj.uniform_peers(4, 0.25)
    whole, half = (traffic.expected_routes(draw, params, 9, wire) for wire in (None, "bfloat16"))
    np.testing.assert_array_equal(2 * half.bytes_sent, whole.bytes_sent)


@pytest.mark.parametrize("wire_dtype", ["int8", "fp99", 3, jnp.int32])
def test_a_wire_type_that_is_not_floating_point_is_refused(wire_dtype):
    for make, _ in PROTOCOLS.values():
        with pytest.raises(ValueError, match=r"wire_dtype must be a type of floating point.*got"):
            make(wire_dtype)


@pytest.mark.slow
def test_bfloat16_costs_less_than_a_point_of_accuracy_on_digits():
    """Mean test accuracy over workers and 3 seeds: the demo's Elastic Gossip, but at p = 1/8."""
    dataset = data.load("digits")
    programs = Programs(dataset)

    def accuracies(wire_dtype):
        for seed in range(3):
            config = dataclasses.replace(demo.SETTINGS, p=1 / 8, wire_dtype=wire_dtype, seed=seed)
            setup = run.set_up(config, dataset, programs)
            *_, (progress, _) = loop.epochs_of_one(setup, run.start(setup))
            yield run.result(setup, progress).worker_accuracy

    whole, half = (np.array([*accuracies(wire)]) for wire in (None, "bfloat16"))
    assert whole.mean() > 0.95, "it learns"
    assert abs(whole.mean() - half.mean()) < 0.01, (whole, half)
    assert (whole != half).any(), "the wire type reaches the run"
