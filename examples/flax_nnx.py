"""Elastic Gossip with flax nnx: JAX_NUM_CPU_DEVICES=4 python examples/flax_nnx.py

Four workers fit a curve. JAX maps pure functions, so the model and its optimizer are split into a graph
and a state before, and merged within.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import gossip_jax as gj


class MLP(nnx.Module):
    """One hidden layer."""

    def __init__(self, rngs):
        self.hidden, self.out = nnx.Linear(1, 32, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        """Returns a number for each row of x."""
        return self.out(nnx.tanh(self.hidden(x)))[:, 0]


def loss(model, x):
    """Mean squared error."""
    return jnp.mean((model(x) - jnp.sin(x[:, 0])) ** 2)


workers = gj.place(num_workers=4)
local = optax.adam(0.01)
tx = gj.decentralise(local, gj.elastic_gossip(alpha=0.5), draw=gj.uniform_peers(4, p=1 / 8))
model = MLP(nnx.Rngs(0))
graph, state = nnx.split((model, nnx.Optimizer(model, tx, wrt=nnx.Param)))


def step(state, x):
    """One update of one worker."""
    model, optimizer = nnx.merge(graph, state)
    value, grads = nnx.value_and_grad(loss)(model, x)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), value


state = workers.replicate(state)
all_workers = workers.map(step, in_axes=(0, 0), donate_argnums=0)
for t in range(200):
    x = jax.random.uniform(jax.random.key(t), (64, 1), minval=-3, maxval=3)
    state, _ = all_workers(state, workers.split(x))
    jax.block_until_ready(state)  # CPU devices can hang where a loop runs ahead
mean, _ = nnx.merge(graph, gj.metrics.mean_replica(jax.device_get(state)))
print(f"loss of the mean replica: {loss(mean, jnp.linspace(-3, 3, 100)[:, None]):.4f}")
