"""Elastic Gossip with equinox: JAX_NUM_CPU_DEVICES=4 python examples/equinox_mlp.py

Four workers fit a curve. The arrays of the module are mapped; what else it holds stays outside.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import gossip_jax as gj


def loss(params, x):
    """Mean squared error."""
    model = eqx.combine(params, static)
    return jnp.mean((jax.vmap(model)(x)[:, 0] - jnp.sin(x[:, 0])) ** 2)


def step(params, opt_state, x):
    """One update of one worker."""
    grads = jax.grad(loss)(params, x)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


workers = gj.place(num_workers=4)
optimizer = gj.decentralise(
    optax.adam(0.01), gj.elastic_gossip(alpha=0.5), draw=gj.uniform_peers(4, p=1 / 8)
)
model = eqx.nn.MLP(1, 1, width_size=32, depth=1, activation=jnp.tanh, key=jax.random.key(0))
params, static = eqx.partition(model, eqx.is_array)
params, opt_state = workers.replicate((params, optimizer.init(params)))
all_workers = workers.map(step, in_axes=(0, 0, 0), donate_argnums=(0, 1))
for t in range(200):
    x = jax.random.uniform(jax.random.key(t), (64, 1), minval=-3, maxval=3)
    params, opt_state = all_workers(params, opt_state, workers.split(x))
    jax.block_until_ready(params)  # CPU devices can hang where a loop runs ahead
mean = gj.metrics.mean_replica(jax.device_get(params))
print(f"loss of the mean replica: {loss(mean, jnp.linspace(-3, 3, 100)[:, None]):.4f}")
