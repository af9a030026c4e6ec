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

NARROWER = [name for name in ("float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn") if hasattr(jnp, name)]
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


@pytest.mark.parametrize(
    "wire_dtype",
    ["int8", "fp99", 3, jnp.int32, "float64", *NARROWER],
    ids=str,
)
def test_a_type_that_replicas_cannot_be_sent_in_is_refused_by_the_factory(wire_dtype):
    """No integers; and no floats of 8 bits and fewer, which make NaN of 500 or of what is negative."""
    for make in (*(make for make, _ in PROTOCOLS.values()), lambda wire: gj.dpsgd(wire_dtype=wire)):
        with pytest.raises(
            ValueError, match=r"wire_dtype must be one of bfloat16, float16, float32, or None; got"
        ):
            make(wire_dtype)


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16", jnp.bfloat16, np.float16, "float32"])
def test_a_wire_type_can_be_given_by_name_or_as_a_type(wire_dtype):
    gj.elastic_gossip(0.5, wire_dtype=wire_dtype)


# What a float32 can be, finite: its largest (3.4e38), what float16 has no room for, its smallest ones.
FINITE = [70_000.0, -65_520.0, 3.4e38, -3.4e38, 1e-45, -1e-40, 6e-8, 0.0, -0.0, 1.0, -300.0]


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16", "float32", None])
@pytest.mark.parametrize("backend", ["vmap", "pmap"])
def test_no_finite_replica_becomes_infinite_or_nan_by_being_sent(backend, wire_dtype):
    """α = ¼ of the difference of two, which is finite itself: beyond the wire type is its largest."""
    theta = np.stack([np.array(FINITE, np.float32) / 2, np.array(FINITE, np.float32)[::-1] / 4])
    moved = communicate(gj.elastic_gossip(0.25, wire_dtype=wire_dtype), backend, 2)(
        theta, gj.Round([1, -1])
    )
    assert np.isfinite(moved).all()
    largest = float(jnp.finfo(wire_dtype or "float32").max)
    sent = np.clip(theta.astype(np.float64), -largest, largest)
    want = theta + 0.25 * (sent[::-1] - sent)
    if wire_dtype in (None, "float32"):
        np.testing.assert_allclose(moved, want, rtol=1e-6, atol=1e-38)
    else:  # 8 significant bits of the larger of the two, and what float16 has no normal number for
        size = np.abs(sent).max(axis=0, keepdims=True)
        assert (np.abs(moved - want) <= 2**-8 * size + 2**-14).all()


def test_what_is_infinite_or_nan_stays_so_in_the_wire_type():
    theta = np.array([[np.inf, -np.inf, np.nan], [1, 1, 1]], np.float32)
    for wire_dtype in ("bfloat16", "float16"):
        move = communicate(gj.elastic_gossip(0.5, wire_dtype=wire_dtype), "vmap", 2)
        assert not np.isfinite(move(theta, gj.Round([1, -1]))).any()


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
            yield run.result(setup, progress).scores["worker_accuracy"]

    whole, half = (np.array([*accuracies(wire)]) for wire in (None, "bfloat16"))
    assert whole.mean() > 0.95, "it learns"
    assert abs(whole.mean() - half.mean()) < 0.01, (whole, half)
    assert (whole != half).any(), "the wire type reaches the run"
