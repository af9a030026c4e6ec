"""Elastic Gossip fed by a grain pipeline: JAX_NUM_CPU_DEVICES=4 python examples/grain_stream.py

Examples are made, shuffled and batched as they are needed; a batch is divided among four workers. Where
the pipeline stands is a small dictionary, which a checkpoint can hold.
"""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

import gossip_jax as gj

WORKERS, BATCH, UPDATES = 4, 32, 400  # examples in a batch of all workers


def example(index, rng: np.random.Generator):
    """A point, and the value of the curve that is to be learnt there."""
    del index
    x = rng.uniform(-1, 1, 1).astype(np.float32)
    return {"x": x, "y": np.sin(3 * x)}


pipeline = (
    grain.MapDataset.range(10_000)
    .seed(0)
    .shuffle()
    .random_map(example)
    .repeat()
    .batch(BATCH, drop_remainder=True)
    .to_iter_dataset()
)

draw = gj.uniform_peers(WORKERS, p=1 / 8)
optimizer = gj.decentralise(optax.adam(0.01), gj.elastic_gossip(alpha=0.5), draw)
workers = gj.place(WORKERS)


def predict(params, x):
    """A perceptron of one hidden layer."""
    return jnp.tanh(x @ params["in"] + params["bias"]) @ params["out"]


def loss(params, batch):
    """The mean squared error."""
    return jnp.mean((predict(params, batch["x"]) - batch["y"]) ** 2)


def step(params, state, batch):
    """What one worker does with its part of a batch."""
    gradient = jax.grad(loss)(params, batch)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


train = workers.map(step, in_axes=(0, 0, 0), donate_argnums=(0, 1))
first, second = jax.random.split(jax.random.key(0))
params = {
    "in": jax.random.normal(first, (1, 32)),
    "bias": jnp.zeros((1, 32)),
    "out": jax.random.normal(second, (32, 1)) / 32**0.5,
}
params, state = workers.replicate((params, optimizer.init(params)))
batches = iter(pipeline)
for _ in range(UPDATES // 2):
    params, state = train(params, state, workers.split(next(batches)))
    jax.block_until_ready(params)  # CPU devices can hang where a loop runs ahead
stands = batches.get_state()  # to be saved beside params and state

batches = iter(pipeline)
batches.set_state(stands)  # as after a restart
for _ in range(UPDATES // 2):
    params, state = train(params, state, workers.split(next(batches)))
    jax.block_until_ready(params)  # CPU devices can hang where a loop runs ahead

x = np.linspace(-1, 1, 200, dtype=np.float32)[:, None]
model = gj.metrics.mean_replica(params)
error = loss(jax.device_get(model), {"x": x, "y": np.sin(3 * x)})
print(f"mean squared error: {error:.4f}")
