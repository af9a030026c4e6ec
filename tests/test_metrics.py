"""Accuracy scores every example; disagreement is what its formula says."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gossip_jax import metrics


@pytest.mark.parametrize("batch_size", [1, 3, 10, 22, 23, 24, 500])
def test_every_example_is_scored_once_whatever_the_batch_size(batch_size, rng):
    inputs, kernel = rng.normal(size=(23, 4)), rng.normal(size=(4, 3))
    inputs, kernel = jnp.asarray(inputs, jnp.float32), jnp.asarray(kernel, jnp.float32)
    labels = rng.integers(0, 3, 23)
    # The last example is right: scored more than once, where a batch is filled up, it would count more.
    labels[-1] = np.argmax(inputs[-1] @ kernel)
    want = (np.argmax(inputs @ kernel, axis=1) == labels).sum()
    score = jax.jit(lambda x, y: metrics.num_correct(lambda x: x @ kernel, x, y, batch_size))
    assert score(inputs, jnp.asarray(labels, jnp.int32)) == want
    assert 0 < want < 23


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-6), (jnp.bfloat16, 2**-8)])
@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_mean_replica_and_consensus_distance_follow_their_formulas(num_workers, dtype, tolerance, rng):
    shapes = {"kernel": (4, 3), "blocks": [(5,), ()]}
    params = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=(num_workers, *shape)), dtype),
        shapes,
        is_leaf=lambda shape: isinstance(shape, tuple),
    )
    flat = np.concatenate(
        [np.asarray(leaf, np.float64).reshape(num_workers, -1) for leaf in jax.tree.leaves(params)],
        axis=1,
    )
    mean = metrics.mean_replica(params)
    flat_mean = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(mean)])
    np.testing.assert_allclose(flat_mean, flat.mean(axis=0), rtol=tolerance, atol=tolerance)
    assert jax.tree.map(lambda leaf: leaf.dtype, mean) == jax.tree.map(lambda leaf: leaf.dtype, params)

    # The distance is from the mean in float32, also for bfloat16 replicas.
    want = np.sqrt(((flat - flat.mean(axis=0)) ** 2).sum(axis=1).mean())
    distance = metrics.consensus_distance(params)
    assert distance.dtype == jnp.float32
    np.testing.assert_allclose(distance, want, rtol=1e-5, atol=1e-6)


def test_replicas_that_agree_are_at_no_distance():
    params = {"kernel": jnp.ones((4, 3)), "none": {}}
    assert metrics.consensus_distance(params) == 0
    assert metrics.consensus_distance({}) == 0


def test_only_what_is_of_floating_point_is_averaged():
    params = {
        "kernel": jnp.array([[1.0], [3.0]]),
        "count": jnp.array([16777217, 5]),  # which float32 cannot hold
        "flag": jnp.array([True, False]),
        "key": jax.random.split(jax.random.key(0)),
        "none": None,
    }
    mean = metrics.mean_replica(params)
    assert mean["kernel"] == 2
    assert (mean["count"], mean["count"].dtype) == (16777217, jnp.int32)
    assert mean["flag"]
    assert mean["flag"].dtype == bool
    assert mean["key"] == params["key"][0]
    assert mean["none"] is None
    assert metrics.consensus_distance(params) == 1


def test_a_module_with_static_fields_and_functions_has_a_mean_that_can_be_called():
    keys = jax.random.split(jax.random.key(0), 3)

    @equinox.filter_vmap
    def make(key):
        return equinox.nn.MLP(2, 1, width_size=4, depth=1, key=key)

    params = make(keys)
    mean = metrics.mean_replica(params)
    assert mean(jnp.ones(2)).shape == (1,)
    np.testing.assert_allclose(
        mean.layers[0].weight, params.layers[0].weight.mean(axis=0), rtol=0, atol=1e-6
    )
    assert metrics.consensus_distance(params) > 0.1
