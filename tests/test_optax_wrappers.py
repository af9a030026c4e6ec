"""A protocol is an optax transformation: it composes with optax's own wrappers, in every backend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from cases import BACKENDS
from reference import elastic_gossip

import gossip_jax as gj

NUM_WORKERS, ALPHA, RATE = 4, 0.25, 0.5
PEERS = np.array([[2, -1, 1, -1], [-1, -1, -1, -1], [1, 0, -1, 2], [3, 3, -1, -1]])
oracle = elastic_gossip(ALPHA)


def run(optimizer: Any, backend: Any, params: Any, grads: Any) -> Any:
    """The replicas [W, ...] after one update for each row of `grads` [T, W, ...]."""

    grads = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), grads)
    rounds = gj.Round(PEERS, np.arange(1, len(PEERS) + 1))
    mapped = gj.place(NUM_WORKERS, backend).map(toy.scan_updates(optimizer), (0, 0, None))
    return jax.device_get(mapped(params, grads, rounds))


def expected(params: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """By the reference, from the local updates [T, W, ...]."""
    for peer, u in zip(PEERS, updates, strict=True):
        params, _ = oracle(peer, 1, params, u, None)
    return params


@pytest.fixture
def params(rng) -> np.ndarray:
    return rng.uniform(-1, 1, (NUM_WORKERS, 3)).astype(np.float32)


@pytest.fixture
def grads(rng) -> np.ndarray:
    return rng.uniform(-1, 1, (len(PEERS), NUM_WORKERS, 3)).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_apply_if_finite_around_the_local_optimizer_keeps_a_sick_workers_update_out(
    backend, params, grads
):
    """A worker without a finite gradient makes no local update, and still takes part in gossip.

    Around the whole chain it would put the exchange under a predicate of each worker's own, and
    workers that disagree would wait for each other for ever.
    """
    grads[0, 1], grads[2, 3, 0] = np.nan, np.inf
    local = optax.apply_if_finite(optax.sgd(RATE), max_consecutive_errors=5)
    finite = np.isfinite(grads).all(axis=2, keepdims=True)
    want = expected(params, np.where(finite, -RATE * grads, 0))
    actual = run(optax.chain(local, gj.elastic_gossip(ALPHA)), backend, params, grads)
    np.testing.assert_allclose(actual, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_multi_steps_around_the_local_optimizer_gathers_gradients_and_gossips_at_each(
    backend, params, grads
):
    local = optax.MultiSteps(optax.sgd(RATE), every_k_schedule=2).gradient_transformation()
    updates = np.zeros_like(grads)
    updates[1::2] = -RATE * grads.reshape(2, 2, NUM_WORKERS, 3).mean(axis=1)
    with jax.numpy_dtype_promotion("standard"):  # MultiSteps itself mixes int32 and float32
        actual = run(optax.chain(local, gj.elastic_gossip(ALPHA)), backend, params, grads)
    np.testing.assert_allclose(actual, expected(params, updates), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_named_chain_hands_the_round_on(backend, params, grads):
    optimizer = optax.named_chain(("sgd", optax.sgd(RATE)), ("gossip", gj.elastic_gossip(ALPHA)))
    actual = run(optimizer, backend, params, grads)
    np.testing.assert_allclose(actual, expected(params, -RATE * grads), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inject_hyperparams_hands_over_a_moving_rate_that_is_an_array(backend, params, grads):
    gossip = optax.inject_hyperparams(gj.elastic_gossip, static_args=("axis_name",))(alpha=ALPHA)
    actual = run(optax.chain(optax.sgd(RATE), gossip), backend, params, grads)
    np.testing.assert_allclose(actual, expected(params, -RATE * grads), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inject_hyperparams_lets_the_moving_rate_follow_a_schedule(backend, params, grads):
    schedule = optax.linear_schedule(0.4, 0.1, len(PEERS) - 1)
    gossip = optax.inject_hyperparams(gj.elastic_gossip)(alpha=schedule)
    actual = run(optax.chain(optax.sgd(RATE), gossip), backend, params, grads)
    want = params
    for t, peer in enumerate(PEERS):
        want, _ = elastic_gossip(0.4 - 0.1 * t)(peer, 1, want, -RATE * grads[t], None)
    np.testing.assert_allclose(actual, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inject_hyperparams_works_around_elastic_averaging(backend, params, grads):
    params[:] = params[0]
    injected = optax.inject_hyperparams(gj.elastic_averaging, static_args=("period",))
    plain, wrapped = (
        run(optax.chain(optax.sgd(RATE), protocol), backend, params, grads)
        for protocol in (gj.elastic_averaging(0.1, period=2), injected(alpha=0.1, period=2))
    )
    np.testing.assert_allclose(wrapped, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_leaves_are_not_exchanged(backend, params, grads):
    """Also the way to keep counters among the parameters."""
    tree = {"shared": params, "own": params.copy(), "counter": np.arange(NUM_WORKERS, dtype=np.int32)}
    tree_grads = {
        "shared": grads,
        "own": grads.copy(),
        "counter": np.zeros((len(PEERS), NUM_WORKERS), np.int32),
    }
    mask = {"shared": True, "own": False, "counter": False}
    gossip = optax.masked(gj.elastic_gossip(ALPHA), mask)
    optimizer = optax.chain(optax.masked(optax.sgd(RATE), mask | {"own": True}), gossip)
    actual = run(optimizer, backend, tree, tree_grads)
    np.testing.assert_allclose(actual["shared"], expected(params, -RATE * grads), rtol=0, atol=1e-6)
    np.testing.assert_allclose(actual["own"], params - RATE * grads.sum(axis=0), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(actual["counter"], np.arange(NUM_WORKERS))


def test_a_moving_rate_can_be_swept_inside_jit(params):
    """Alpha as a traced argument of one compiled program, here vmapped over."""

    def moved(alpha, round):
        protocol = gj.elastic_gossip(alpha)

        def move(theta):
            return theta + protocol.update(jnp.zeros_like(theta), (), theta, round=round)[0]

        return jax.vmap(move, axis_name="workers")(params)

    rates = np.array([0.1, 0.5, 1.0], np.float32)
    actual = jax.jit(jax.vmap(moved, (0, None)))(rates, gj.Round(PEERS[2]))
    for rate, replicas in zip(rates, actual, strict=True):
        want, _ = elastic_gossip(float(rate))(PEERS[2], 1, params, np.zeros_like(params), None)
        np.testing.assert_allclose(replicas, want, rtol=0, atol=1e-6)


def test_the_probability_of_contact_can_be_swept_inside_jit():
    rates = jnp.array([0.0, 0.4, 1.0])
    key = gj.keys.run_key(0)
    peers = jax.jit(jax.vmap(lambda p: gj.pairing(6, p)(key, 1).peer))(rates)
    for p, peer in zip((0.0, 0.4, 1.0), peers, strict=True):
        np.testing.assert_array_equal(peer, gj.pairing(6, p)(key, 1).peer)
