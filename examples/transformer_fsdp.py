"""A language model, FSDP within each worker: JAX_NUM_CPU_DEVICES=8 python examples/transformer_fsdp.py

Four workers of two devices each. Gossip goes between workers; within one, parameters and batch are
divided over its two devices, and XLA gathers what a layer needs. The model learns to repeat a word.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gossip_jax as gj

WORDS, WIDTH, LENGTH, HALF = 16, 32, 16, 8
mesh = jax.make_mesh((4, 2), ("workers", "data"), axis_types=(AxisType.Auto,) * 2)
workers = gj.place(mesh=mesh)
local = optax.adam(0.01)
optimizer = gj.decentralise(local, gj.elastic_gossip(alpha=0.5), draw=gj.uniform_peers(4, p=1 / 4))


def init(key):
    """The parameters of one worker, each divided over its devices along the first axis."""
    shapes = {
        "words": (WORDS, WIDTH),
        "places": (LENGTH, WIDTH),
        **{f"{name}{layer}": (WIDTH, WIDTH) for name in "qkvo" for layer in (0, 1)},
        **{f"up{layer}": (WIDTH, 2 * WIDTH) for layer in (0, 1)},
        **{f"down{layer}": (2 * WIDTH, WIDTH) for layer in (0, 1)},
    }
    keys = jax.random.split(key, len(shapes))
    made = {
        n: jax.random.normal(k, s) / s[0] ** 0.5 for (n, s), k in zip(shapes.items(), keys, strict=True)
    }
    return jax.device_put(made, NamedSharding(mesh, PartitionSpec("data")))


def norm(x):
    """Root-mean-square normalisation."""
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def loss(p, text):
    """Mean cross-entropy of the second half of text, int32 [batch, LENGTH + 1]."""
    x = p["words"][text[:, :-1]] + p["places"]
    for i in (0, 1):
        h = norm(x)
        q, k, v = ((h @ p[f"{name}{i}"])[:, :, None] for name in "qkv")
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True)[:, :, 0] @ p[f"o{i}"]
        x = x + jax.nn.gelu(norm(x) @ p[f"up{i}"]) @ p[f"down{i}"]
    logits = norm(x) @ p["words"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:])
    return losses[:, HALF:].mean()


def step(params, opt_state, text):
    """One update of one worker."""
    text = jax.lax.with_sharding_constraint(text, PartitionSpec("data"))
    value, grads = jax.value_and_grad(loss)(params, text)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


params = init(jax.random.key(0))
params, opt_state = workers.replicate((params, optimizer.init(params)))
assert params["q0"].addressable_shards[0].data.shape == (1, WIDTH // 2, WIDTH)
all_workers = workers.map(step, in_axes=(0, 0, 0), donate_argnums=(0, 1))
for t in range(150):
    word = jax.random.randint(jax.random.key(t), (64, 1), 0, WORDS)
    text = jnp.broadcast_to(word, (64, LENGTH + 1))
    params, opt_state, value = all_workers(params, opt_state, workers.split(text))
    jax.block_until_ready(params)  # CPU devices can hang where a loop runs ahead
print(f"mean loss of the workers: {value.mean():.4f}")
