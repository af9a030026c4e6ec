"""DiLoCo with AdamW on a small transformer: JAX_NUM_CPU_DEVICES=1 python examples/diloco.py

A byte-level transformer on four workers: each trains with AdamW by itself, and every so many updates
an outer optimizer takes the mean of how far they came. All-reduce SGD averages at every one. The text
is the source of Python's standard library. Arguments: updates (64), seed (0), period (16).
"""

import sys
import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import gossip_jax as gj

WORKERS, BATCH, LENGTH = 4, 8, 64
UPDATES, SEED, PERIOD = (int(a) for a in (*sys.argv[1:], *("64", "0", "16")[len(sys.argv) - 1 :]))


class Transformer(nn.Module):
    """Causal, over bytes."""

    width: int = 64
    layers: int = 2

    @nn.compact
    def __call__(self, tokens):
        """Logits [B, T, 256] for tokens [B, T]."""
        x = nn.Embed(256, self.width)(tokens)
        x = x + self.param("position", nn.initializers.normal(0.02), (LENGTH, self.width))[None]
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(256)(nn.LayerNorm()(x))


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on, and bytes to test on, of other files."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [np.frombuffer(path.read_bytes(), np.uint8) for path in files]
    return np.concatenate(texts[::2]), np.concatenate(texts[1::2])


def draw_batch(text: jax.Array, key: jax.Array) -> jax.Array:
    """Pieces of the text, int32 [B, T + 1]."""
    starts = jax.random.randint(key, (BATCH,), 0, len(text) - LENGTH - 1)
    return text[starts[:, None] + jnp.arange(LENGTH + 1)[None]].astype(jnp.int32)


model = Transformer()
train_text, test_text = (jnp.asarray(text) for text in corpus())


def loss(params, batch):
    """The mean cross-entropy of each next byte."""
    logits = model.apply(params, batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


def bits_a_byte(protocol) -> float:
    """On test text, of the mean replica, after training with a protocol."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, UPDATES // 16, UPDATES, 2e-4)
    local = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
    silent = gj.uniform_peers(WORKERS, p=0.0)  # both go by the number of the update alone
    optimizer = gj.decentralise(local, protocol, silent)

    def train(params, state, worker):
        def update(carry, t):
            params, state = carry
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), t), worker)
            gradient = jax.grad(loss)(params, draw_batch(train_text, key))
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(update, (params, state), jnp.arange(UPDATES))[0][0]

    params = model.init(jax.random.key(SEED), jnp.zeros((1, LENGTH), jnp.int32))
    workers = gj.place(WORKERS, "vmap")
    stacked, states = workers.replicate((params, optimizer.init(params)))
    trained = workers.map(train, in_axes=(0, 0, 0))(stacked, states, jnp.arange(WORKERS))
    mean = gj.metrics.mean_replica(trained)
    test = jax.vmap(draw_batch, in_axes=(None, 0))(test_text, jax.random.split(jax.random.key(1), 64))
    return float(jax.jit(jax.vmap(loss, in_axes=(None, 0)))(mean, test).mean() / jnp.log(2))


if UPDATES >= 1024:  # long enough to compare
    together = bits_a_byte(gj.all_reduce())
    print(f"all_reduce: {together:.4f} bits a byte; diloco sends {1 / PERIOD:.1%} of its bytes")
print(f"bits a byte of diloco: {bits_a_byte(gj.diloco(period=PERIOD)):.4f}")
