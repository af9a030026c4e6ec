"""What the library asks jax with a fallback that is empty: these fail when jax renames it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from gossip_jax import axis, exchange
from gossip_jax.stacked import _mesh_of


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Auto,))


def seen_in_shard_map(mesh, probe, **options):
    """What a probe says of one worker's values there."""
    said = []

    def block(own, shared):
        said.append(probe(own, shared))
        return own

    specs = {"in_specs": (P("workers"), P()), "out_specs": P("workers")}
    jax.jit(jax.shard_map(block, mesh=mesh, **specs, **options)).lower(jnp.zeros(2), jnp.zeros(3))
    return said[-1]


def test_shard_map_says_what_varies_where_it_checks_it_and_nothing_where_it_does_not(mesh):
    def probe(own, shared):
        return exchange._varying_axes(own), exchange._varying_axes({"a": shared})

    assert seen_in_shard_map(mesh, probe, check_vma=True) == ({"workers"}, set())
    assert seen_in_shard_map(mesh, probe, check_vma=False) == (set(), set())


def test_an_axis_of_shard_map_is_across_devices_and_one_of_vmap_within(mesh):
    def probe(own, shared):
        within = []
        jax.vmap(lambda x: within.append(axis.bound("inner")) or x, axis_name="inner")(shared)
        return axis._is_across_devices("workers"), axis._is_across_devices("other"), within[0]

    across, other, inner = seen_in_shard_map(mesh, probe)
    assert (across, other) == (True, False)
    assert (inner.devices, inner.replicas, inner.size) == (None, "inner", 3)
    assert not axis._is_across_devices("workers"), "outside of it there is no such axis"
    said = []
    jax.pmap(lambda x: said.append(axis.bound("workers")) or x, axis_name="workers")(jnp.zeros(2))
    assert (said[0].devices, said[0].replicas, said[0].size) == ("workers", None, 2)


def test_a_mesh_with_further_axes_is_told_from_one_without():
    two = jax.make_mesh((2, 2), ("workers", "data"), axis_types=(AxisType.Auto,) * 2)
    one = jax.make_mesh((2, 1), ("workers", "data"), axis_types=(AxisType.Auto,) * 2)

    def probe(own, shared):
        return exchange._has_further_axes()

    for mesh, want in ((two, True), (one, False)):
        assert seen_in_shard_map(mesh, probe, axis_names={"workers"}, check_vma=False) is want
    assert seen_in_shard_map(two, probe, check_vma=False) is False, "all of its axes are manual there"


def test_the_type_of_a_value_names_its_mesh_where_axes_are_explicit():
    explicit = jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Explicit,))
    value = jax.device_put(np.zeros(4, np.float32), NamedSharding(explicit, P("workers")))
    assert _mesh_of([value], "workers").shape == {"workers": 2}
    auto = jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Auto,))
    plain = jnp.zeros(4)
    with jax.set_mesh(auto):
        assert _mesh_of([plain], "workers").shape == {"workers": 2}
    with pytest.raises(ValueError, match="there is no mesh"):
        _mesh_of([plain], "workers")


def test_a_replicated_leaf_tells_how_it_is_divided():
    """`Placement.replicate` reads `.sharding.spec`."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    leaf = jax.device_put(np.zeros((4, 3), np.float32), NamedSharding(mesh, P("data")))
    assert leaf.sharding.spec == P("data")
