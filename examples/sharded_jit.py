"""Elastic Gossip in one jit with shardings: JAX_NUM_CPU_DEVICES=4 python examples/sharded_jit.py

Four workers fit a line. Replicas are stacked [W, ...], and XLA divides the work; the optimizer alone
runs under shard_map, so that only those who talk send anything.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gossip_jax as gj

mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
own = NamedSharding(mesh, PartitionSpec("workers"))
local = optax.sgd(0.05, momentum=0.5)
one = gj.decentralise(local, gj.elastic_gossip(alpha=0.5), draw=gj.uniform_peers(4, p=1 / 8))
optimizer = gj.stacked(one, mesh=mesh)


def loss(params, x):
    """Mean squared error of one worker."""
    return jnp.mean((x @ params - x.sum(axis=1)) ** 2)


@jax.jit
def step(params, opt_state, x):
    """One update of all workers."""
    grads = jax.vmap(jax.grad(loss))(params, x)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


params = jax.device_put(jnp.zeros((4, 3)), own)
opt_state = jax.device_put(optimizer.init(params), own)
for t in range(50):
    x = jax.device_put(jax.random.normal(jax.random.key(t), (4, 8, 3)), own)
    params, opt_state = step(params, opt_state, x)
    jax.block_until_ready(params)  # CPU devices can hang where a loop runs ahead
x = jax.random.normal(jax.random.key(0), (100, 3))
print(f"loss of the mean replica: {loss(gj.metrics.mean_replica(params), x):.4f}")
