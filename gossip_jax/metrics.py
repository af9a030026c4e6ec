"""What is measured of a run: accuracy, of a worker and of the mean replica, and disagreement."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, Int32, Shaped


def num_correct(
    logits: Callable[[Any], Array],
    inputs: Shaped[Array, "n ..."],
    labels: Int[Array, " n"],
    batch_size: int = 500,
) -> Int32[Array, ""]:
    """How many examples a classifier gets right. Every example counts, whatever the batch size.

    Args:
      logits: from inputs [B, ...] to class scores [B, classes].
      inputs: [n, ...].
      labels: integers [n].
      batch_size: B, examples scored at once; it bounds the memory, not the result.

    Returns:
      int32 scalar, out of n.
    """
    num_examples = labels.shape[0]
    batch_size = min(batch_size, num_examples)
    num_batches = -(-num_examples // batch_size)
    batches = jnp.arange(num_batches * batch_size).reshape(num_batches, batch_size)

    def score(correct: Array, indices: Array) -> tuple[Array, None]:
        right = logits(inputs[indices]).argmax(axis=-1) == labels[indices]
        return correct + jnp.sum(right & (indices < num_examples), dtype=jnp.int32), None

    return lax.scan(score, jnp.int32(0), batches)[0]


def mean_replica(params: Any) -> Any:
    """The mean over workers of stacked parameters: leaves [W, ...] become [...].

    It is taken in the leaf's own type, and in float32 at least. What is not of floating point, such as
    counts and keys, is worker 0's. What is no array, such as a function in a module, stays as it is.
    """
    leaves, structure = jax.tree.flatten(params)
    means = iter(_means([leaf for leaf in leaves if _is_array(leaf)]))
    return structure.unflatten([next(means) if _is_array(leaf) else leaf for leaf in leaves])


@jax.jit
def _means(leaves: list[Array]) -> list[Array]:
    return [_mean(leaf).astype(leaf.dtype) if _is_floating(leaf) else leaf[0] for leaf in leaves]


def consensus_distance(params: Any) -> Float[Array, ""]:
    """How far the replicas are apart: `sqrt(mean_i ‖θ_i - θ̄‖²)`, θ̄ the mean replica.

    Args:
      params: stacked parameters, leaves [W, ...]; those that are not of floating point do not count.

    Returns:
      A scalar of the parameters' type, and of float32 at least.
    """
    return _distance(
        [leaf for leaf in jax.tree.leaves(params) if _is_array(leaf) and _is_floating(leaf)]
    )


@jax.jit
def _distance(leaves: list[Array]) -> Array:
    squares = [
        jnp.mean(jnp.sum(jnp.square(_wide(leaf) - _mean(leaf)[None]), axis=range(1, leaf.ndim)))
        for leaf in leaves
    ]
    is_wide = any(square.dtype == jnp.float64 for square in squares)
    total = jnp.float64 if is_wide else jnp.float32
    return jnp.sqrt(sum((square.astype(total) for square in squares), start=jnp.zeros((), total)))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _is_floating(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _wide(leaf: Array) -> Array:
    return leaf.astype(jnp.float64 if leaf.dtype == jnp.float64 else jnp.float32)


def _mean(leaf: Array) -> Array:
    return _wide(leaf).mean(axis=0)
