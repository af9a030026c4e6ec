"""A small training run: an MLP with dropout on random data, made in the same way in every process."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cases import Case

import gossip_jax as gj

BATCH_SIZE, UPDATES, EXAMPLES = 4, 5, 22  # of one worker, in one epoch: two examples are left over


def init_params() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"hidden": (6, 8), "bias": (8,), "out": (8, 3)}
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def shards(num_workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [W, n, 6] and labels [W, n]."""
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(num_workers, EXAMPLES, 6)).astype(np.float32)
    return inputs, rng.integers(0, 3, (num_workers, EXAMPLES)).astype(np.int32)


def loss(params: Any, model_state: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    inputs, labels = batch
    hidden = jax.nn.relu(inputs @ params["hidden"] + params["bias"][None])
    kept = jax.random.bernoulli(key, 0.8, hidden.shape)
    logits = jnp.where(kept, hidden / 0.8, 0) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), model_state


def stack(tree: Any, num_workers: int) -> Any:
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_workers, *np.shape(leaf))).copy(), tree)


def scan_updates(optimizer: Any) -> Any:
    """One worker's parameters after an update for each row of `grads`: `(params, grads, rounds)`."""

    def many(params: Any, grads: Any, rounds: gj.Round) -> Any:
        def step(carry, inputs):
            params, state = carry
            grads, round = inputs
            updates, state = optimizer.update(grads, state, params, round=round)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), (grads, rounds))[0][0]

    return many


def run(case: Case, placement: gj.Placement, draw: gj.Draw, epochs: int = 2) -> gj.training.WorkerState:
    """The stacked state after some epochs."""
    optimizer = case.chain(optax.sgd(0.1, momentum=0.9, nesterov=True))
    num_workers, key = placement.num_workers, gj.keys.run_key(3)
    first = jax.device_get(gj.training.init_worker(init_params(), {}, optimizer))
    state = placement.scatter(stack(first, num_workers))
    data = placement.scatter(shards(num_workers))
    epoch = placement.map(
        gj.training.train_epoch(loss, optimizer, BATCH_SIZE), (0, 0, None, None), (0,)
    )
    every = gj.training.draw_rounds(draw, key, 1, epochs * UPDATES)
    for start in range(0, epochs * UPDATES, UPDATES):
        rounds = jax.tree.map(lambda leaf, start=start: leaf[start : start + UPDATES], every)
        state, _ = epoch(state, data, placement.share(rounds), key)
        jax.block_until_ready(state)
    return state
