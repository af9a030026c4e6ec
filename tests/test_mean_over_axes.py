"""A mean over several axes of devices is one all-reduce."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import gossip_jax as gj


@pytest.mark.parametrize("make", [gj.all_reduce, lambda name: gj.local_sgd(1, name)])
def test_a_mean_over_a_tuple_of_axes_is_an_all_reduce(make):
    axes = ("workers", "data")
    mesh = jax.make_mesh((4, 2), axes, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    protocol = make(axes)
    round = gj.Round([-1] * 8)

    def update(gradient):
        updates, _ = protocol.update(gradient, protocol.init(gradient), gradient, round=round)
        return updates

    spec = PartitionSpec(axes)
    mapped = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=spec, out_specs=spec))
    program = mapped.lower(np.zeros((8, 5), np.float32)).compile().as_text() or ""
    found = set(re.findall(r" (all-reduce|all-gather|all-to-all|reduce-scatter)(?:-start)?\(", program))
    assert found == {"all-reduce"}
