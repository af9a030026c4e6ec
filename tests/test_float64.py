"""Parameters of float64 stay what they are, to its rounding, where 64-bit types are enabled."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import AXES, CASES, communicate, placement

import gossip_jax as gj
from gossip_jax import metrics


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("where", ["vmap", "pmap", "two a device"])
def test_a_moving_rate_is_exact_to_the_rounding_of_float64(where, rng):
    """0.1 in float32 is 1.5e-9 off."""
    theta = rng.uniform(-1, 1, (4, 40))
    move = communicate(gj.elastic_gossip(0.1), placement(where, 4))
    peer = np.array([1, -1, 0, -1])
    found = np.asarray(move(theta, 0 * theta, gj.Round(peer)))
    assert found.dtype == np.float64
    want, _ = reference.elastic_gossip(0.1)(peer, 1, theta, 0 * theta, None)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-15)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_update_of_float64_is_exact_to_its_rounding(case, rng):
    """Thirds, a tenth and three tenths among the weights: none of them is a float32."""
    params, updates, center = rng.uniform(-1, 1, (3, 5, 8))
    center[:] = center[0]
    update = gj.place(5, "vmap").map(case.one_update(), AXES)
    peer = np.array([1, 2, -1, 2, 0], np.int32)
    state = case.state(jnp.asarray(center))
    found, _ = update((params, state), updates, gj.Round(peer, 2))
    want, _ = case.oracle(peer, 2, params, updates, center[0])
    assert found.dtype == jnp.float64
    # Five terms of up to 2, each rounded to 2^-53.
    np.testing.assert_allclose(found, want, rtol=0, atol=4e-15)


def test_weights_of_a_graph_are_exact_to_the_rounding_of_float64(rng):
    theta = rng.uniform(-1, 1, (5, 8))
    round = gj.every(gj.graphs.ring(5))(gj.keys.run_key(0), 1)
    matrix = np.asarray(gj.mixing_matrix(round))
    assert matrix.dtype == np.float64
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-15)
    found = communicate(gj.dpsgd(), gj.place(5, "vmap"))(theta, 0 * theta, round)
    want = (theta + np.roll(theta, 1, axis=0) + np.roll(theta, -1, axis=0)) / 3
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-15)


def test_the_mean_replica_and_the_distance_are_taken_in_float64(rng):
    """1e300 has no float32, and the difference of 1 and 1 + 1e-12 none either."""
    large = {"a": jnp.full((4, 3), 1e300), "b": jnp.full((4, 2), 1.0, jnp.float32)}
    mean = metrics.mean_replica(large)
    np.testing.assert_array_equal(mean["a"], np.full(3, 1e300))
    assert (mean["a"].dtype, mean["b"].dtype) == (jnp.float64, jnp.float32)
    near = jnp.asarray(1 + 1e-12 * rng.normal(size=(4, 30)))
    flat = np.asarray(near)
    want = np.sqrt(((flat - flat.mean(axis=0)) ** 2).sum(axis=1).mean())
    distance = metrics.consensus_distance({"w": near})
    assert distance.dtype == jnp.float64
    np.testing.assert_allclose(distance, want, rtol=1e-3)  # of 1e-12, where values are to 1e-16
