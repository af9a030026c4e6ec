"""Placing a one-worker function on devices changes where it runs, and not what it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BACKENDS

import gossip_jax as gj


def test_auto_has_as_many_devices_as_can_share_the_workers_equally():
    """pmap with one worker a device, shard_map with several, and vmap with all on one."""
    assert len(jax.devices()) == 8
    for num_workers, backend, devices in (
        (8, "pmap", 8),
        (3, "pmap", 3),
        (16, "shard_map", 8),
        (9, "shard_map", 3),
        (14, "shard_map", 7),
        (11, "vmap", 1),
    ):
        placement = gj.place(num_workers)
        assert (placement.backend, len(placement.devices)) == (backend, devices)
        assert placement.workers_per_device == num_workers // devices
    assert gj.place(2, devices=jax.devices()[:1]).backend == "vmap"
    assert gj.place(8, devices=jax.devices()[:4]).workers_per_device == 2


@pytest.mark.parametrize("backend", ["pmap", "shard_map"])
def test_each_worker_has_a_device_to_itself(backend):
    devices = jax.devices()[2:7]
    placement = gj.place(3, backend, devices=devices)
    double = placement.map(lambda x: 2 * x)
    for values in (placement.scatter(np.arange(3.0, dtype=np.float32)), double(jnp.arange(3.0))):
        assert [shard.device for shard in values.addressable_shards] == devices[:3]
        assert all(shard.data.shape == (1,) for shard in values.addressable_shards)
    assert len(placement.share(np.float32(1)).addressable_shards) == 3


def test_vmap_uses_one_device():
    placement = gj.place(3, "vmap", devices=jax.devices()[4:])
    values = placement.map(lambda x: x)(placement.scatter(np.arange(3)))
    assert values.devices() == {jax.devices()[4]}


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_are_stacked_or_shared_and_results_stacked(backend, num_workers):
    def function(own, shared):
        worker = jax.lax.axis_index("ring")
        return {"sum": own["x"] + shared, "worker": worker, "constant": 1.5, "nothing": {}}

    x = np.arange(2.0 * num_workers, dtype=np.float32).reshape(num_workers, 2)
    mapped = gj.place(num_workers, backend, axis_name="ring").map(function, in_axes=(0, None))
    result = mapped({"x": x}, jnp.float32(1))
    np.testing.assert_array_equal(result["sum"], x + 1)
    np.testing.assert_array_equal(result["worker"], np.arange(num_workers))
    np.testing.assert_array_equal(result["constant"], np.full(num_workers, 1.5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_can_have_as_many_leaves_as_there_are_arguments(backend):
    """Where jax.pmap by itself (0.10.2 to 0.12.0) takes the axes of the arguments for the leaves'."""
    function = gj.place(4, backend).map(
        lambda none, x, rounds: x + rounds.peer.sum() + rounds.step.sum(), in_axes=(0, 0, None)
    )
    rounds = gj.Round(np.full((6, 4), -1), np.arange(6))
    assert function({}, jnp.arange(4), rounds).tolist() == [-9, -8, -7, -6]


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_arguments_can_be_shared(backend):
    function = gj.place(3, backend).map(
        lambda a, b: jax.lax.axis_index("workers") * a + b, in_axes=(None, None)
    )
    assert function(jnp.int32(2), jnp.int32(1)).tolist() == [1, 3, 5]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_can_be_shared_and_stacked(backend):
    placement = gj.place(3, backend)
    own, shared = jax.random.split(jax.random.key(0), 3), jax.random.key(1)
    draw = placement.map(
        lambda own, shared: jax.random.normal(own) + jax.random.normal(shared), (0, None)
    )
    want = [jax.random.normal(key) + jax.random.normal(shared) for key in own]
    for keys in ((own, shared), (placement.scatter(own), placement.share(shared))):
        np.testing.assert_allclose(draw(*keys), want, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_donated_arguments_are_used_up_and_others_are_not(backend):
    placement = gj.place(4, backend)
    add = placement.map(lambda state, batch: state + batch, in_axes=(0, 0), donate_argnums=(0,))
    state, batch = (placement.scatter(np.ones((4, 100), np.float32)) for _ in range(2))
    result = add(state, batch)
    assert state.is_deleted()
    assert not batch.is_deleted()
    np.testing.assert_array_equal(result, np.full((4, 100), 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_placed_is_compiled_once(backend):
    traces = []

    def function(x):
        traces.append(x)
        return x + 1

    placement = gj.place(2, backend)
    mapped = placement.map(function)
    x = placement.scatter(jnp.zeros((2, 3)))
    for _ in range(3):
        x = mapped(x)
    assert len(traces) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_stacked_values_of_another_size_than_the_workers_are_refused(backend):
    total = gj.place(4, backend).map(lambda x: x.sum())
    with pytest.raises((ValueError, TypeError)):
        total(jnp.ones((8, 2)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_axes", [(1,), ({"x": 0},)])
def test_axes_other_than_zero_and_none_are_refused(backend, in_axes):
    with pytest.raises(ValueError, match="in_axes must hold 0 or None"):
        gj.place(4, backend).map(lambda x: x, in_axes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_single_axis_and_a_single_donated_argument_need_no_tuple(backend):
    placement = gj.place(4, backend)
    x = placement.scatter(np.ones((4, 100), np.float32))
    np.testing.assert_array_equal(
        placement.map(lambda x: x + 1, 0, donate_argnums=0)(x), np.full((4, 100), 2)
    )
    assert x.is_deleted()


@pytest.mark.parametrize("backend", ["pmap", "vmap", "shard_map", "auto"])
def test_a_placement_needs_a_device(backend):
    with pytest.raises(ValueError, match="devices must name one device or more"):
        gj.place(4, backend, devices=[])
