"""What is compiled: a step once, and a mean as an all-reduce."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import gossip_jax as gj


@pytest.mark.parametrize("backend", ["pmap", "shard_map", "vmap"])
def test_a_step_on_what_was_replicated_is_compiled_once(backend):
    """Parameters and optimizer state are placed as the step returns them."""
    draw = gj.uniform_peers(num_workers=4, p=1 / 2)
    optimizer = gj.decentralise(optax.sgd(0.05, momentum=0.5), gj.elastic_gossip(0.5), draw=draw)

    def stepping(params, state, batch):
        gradient = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    compiled = []

    def listen(event: str, seconds: float, **known) -> None:
        del seconds
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(known.get("fun_name", ""))

    workers = gj.place(4, backend)
    step = workers.map(stepping, in_axes=(0, 0, 0))
    params = jnp.zeros(3)
    params, state = workers.replicate((params, optimizer.init(params)))
    batches = [workers.split(np.ones((8, 3), np.float32)) for _ in range(3)]
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for batch in batches:
            params, state = step(params, state, batch)
            jax.block_until_ready(params)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1, compiled


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
