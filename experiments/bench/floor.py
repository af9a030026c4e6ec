"""The floor: the thesis's MNIST step as one would write it by hand, in plain JAX.

Nothing here is from the library, flax or optax: it is what their cost is measured against.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, PartitionSpec

LEARNING_RATE, MOMENTUM = 0.001, 0.99
MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels, scaled to [0, 1]


def init(key: Array, num_inputs: int, width: int, num_classes: int) -> Any:
    """The parameters and the momentum of one worker."""
    sizes = (num_inputs, width, width, width, num_classes)
    params = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        key, use = jax.random.split(key)
        kernel = jax.random.normal(use, (fan_in, fan_out)) * (2 / fan_in) ** 0.5
        params.append({"kernel": kernel, "bias": jnp.zeros(fan_out)})
    return params, jax.tree.map(jnp.zeros_like, params)


def loss(params: Any, image: Array, label: Array, key: Array) -> Array:
    """The mean cross-entropy of a batch: uint8 [B, height, width, 1], int32 [B]."""
    keys = jax.random.split(key, len(params))
    x = (image.reshape(len(image), -1).astype(jnp.float32) / 255 - MEAN) / STD
    for layer, (param, key) in enumerate(zip(params, keys, strict=True)):
        keep = 0.5 if layer else 0.8
        x = jnp.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0)
        x = x @ param["kernel"] + param["bias"][None]
        x = x if layer == len(params) - 1 else jax.nn.relu(x)
    picked = jnp.take_along_axis(x, label[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(x, axis=1) - picked).mean()


def epoch(batch_size: int, num_updates: int) -> Callable[[Any, Any, Array], tuple[Any, Array]]:
    """Some updates of one worker, as one scan: `(state, (image, label), key) -> (state, mean loss)`."""

    def run(state: Any, shard: Any, key: Array) -> tuple[Any, Array]:
        image, label = shard
        shuffle_key, dropout_key = jax.random.split(jax.random.fold_in(key, lax.axis_index("workers")))
        order = jax.random.permutation(shuffle_key, len(label))

        def step(state: Any, inputs: Any) -> tuple[Any, Array]:
            params, momentum = state
            batch, key = inputs
            value, grads = jax.value_and_grad(loss)(params, image[batch], label[batch], key)
            momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, grads)
            params = jax.tree.map(
                lambda p, m, g: p - LEARNING_RATE * (MOMENTUM * m + g), params, momentum, grads
            )
            return (params, momentum), value

        batches = order[: num_updates * batch_size].reshape(num_updates, batch_size)
        state, values = lax.scan(step, state, (batches, jax.random.split(dropout_key, num_updates)))
        return state, values.mean()

    return run


def on_all_workers(run: Callable[..., Any], backend: str, num_workers: int) -> Any:
    """An `epoch` on stacked states and shards, which takes over the states' buffers."""
    in_axes = (0, 0, None)
    if backend == "vmap":
        return jax.jit(jax.vmap(run, in_axes, axis_name="workers"), donate_argnums=0)
    devices = np.array(jax.devices()[:num_workers])
    if backend == "pmap":
        return jax.pmap(
            run, axis_name="workers", in_axes=in_axes, donate_argnums=0, devices=devices.tolist()
        )

    def one_block(state: Any, shard: Any, key: Array) -> Any:
        state, shard = jax.tree.map(lambda leaf: leaf[0], (state, shard))
        return jax.tree.map(lambda leaf: leaf[None], run(state, shard, key))

    mesh = Mesh(devices, ("workers",), axis_types=(AxisType.Auto,))
    own, shared = PartitionSpec("workers"), PartitionSpec()
    mapped = jax.shard_map(
        one_block, mesh=mesh, in_specs=(own, own, shared), out_specs=own, check_vma=False
    )
    return jax.jit(mapped, donate_argnums=0)
