"""Elastic Gossip with flax linen's TrainState: JAX_NUM_CPU_DEVICES=4 python examples/flax_linen.py

Four workers fit a curve. `apply_gradients` knows nothing of rounds: the optimizer draws its own.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import gossip_jax as gj


class MLP(nn.Module):
    """One hidden layer."""

    @nn.compact
    def __call__(self, x):
        """Returns a number for each row of x."""
        return nn.Dense(1)(nn.tanh(nn.Dense(32)(x)))[:, 0]


def loss(params, state, x):
    """Mean squared error."""
    return jnp.mean((state.apply_fn(params, x) - jnp.sin(x[:, 0])) ** 2)


def step(state, x):
    """One update of one worker."""
    value, grads = jax.value_and_grad(loss)(state.params, state, x)
    return state.apply_gradients(grads=grads), value


workers = gj.place(num_workers=4)
optimizer = gj.decentralise(
    optax.adam(0.01), gj.elastic_gossip(alpha=0.5), draw=gj.uniform_peers(4, p=1 / 8)
)
model = MLP()
params = model.init(jax.random.key(0), jnp.zeros((1, 1)))
state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
state = workers.replicate(state)
all_workers = workers.map(step, in_axes=(0, 0), donate_argnums=0)
for t in range(200):
    x = jax.random.uniform(jax.random.key(t), (64, 1), minval=-3, maxval=3)
    state, _ = all_workers(state, workers.split(x))
    jax.block_until_ready(state)  # CPU devices can hang where a loop runs ahead
mean = gj.metrics.mean_replica(jax.device_get(state.params))
x = jnp.linspace(-3, 3, 100)[:, None]
print(f"loss of the mean replica: {jnp.mean((model.apply(mean, x) - jnp.sin(x[:, 0])) ** 2):.4f}")
