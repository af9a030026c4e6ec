"""Saving and restoring replicas with orbax: JAX_NUM_CPU_DEVICES=4 python examples/orbax_checkpoint.py

Parameters and optimizer state are saved, with the counter from which rounds are drawn: so a run that is
restored half-way draws the rounds that it would have drawn, and ends the same.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

import gossip_jax as gj

workers = gj.place(num_workers=4)
local = optax.sgd(0.05, momentum=0.5)
optimizer = gj.decentralise(local, gj.elastic_gossip(alpha=0.5), draw=gj.uniform_peers(4, p=1 / 4))


def step(state, x):
    """One update of one worker."""
    params, opt_state = state
    grads = jax.grad(lambda w: jnp.mean((x @ w - x.sum(axis=1)) ** 2))(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def train(state, first, last):
    """The state after some updates."""
    for t in range(first, last):
        x = workers.split(jax.random.normal(jax.random.key(t), (32, 3)))
        state = jax.block_until_ready(all_workers(state, x))
    return state


all_workers = workers.map(step, in_axes=(0, 0))
params = jnp.zeros(3)
start = workers.replicate((params, optimizer.init(params)))
half = train(start, 0, 10)
with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(Path(folder) / "half", half)
    checkpointer.wait_until_finished()
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, half)
    restored = checkpointer.restore(Path(folder) / "half", like)
ends = train(half, 10, 20)[0], train(restored, 10, 20)[0]
print(f"difference after restoring: {jnp.abs(ends[0] - ends[1]).max():.4f}")
