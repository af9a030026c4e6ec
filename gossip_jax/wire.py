"""A replica as it travels: in what type, and in how many messages."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SMALL = 128 * 1024  # bytes up to which copying a leaf costs less than a message of its own


def rounded(tree: Any, dtype: np.dtype | None) -> Any:
    """Every leaf rounded to what the wire type holds, in its own type."""
    if dtype is None:
        return tree
    # Not by casting there and back, which XLA may leave out (xla_allow_excess_precision).
    wire = jnp.finfo(dtype)
    return jax.tree.map(lambda leaf: lax.reduce_precision(leaf, wire.nexp, wire.nmant), tree)


def pack(
    tree: Any, dtype: np.dtype | None, small: int
) -> tuple[list[Array], Callable[[Sequence[Array]], Any]]:
    """The messages that a replica travels in: one for each large leaf, and one for all small ones.

    Args:
      tree: one worker's replica.
      dtype: the wire type, which every leaf is cast to; where None, leaves keep their own.
      small: the bytes up to which a leaf is small.

    Returns:
      The messages, and what makes a tree like this one of messages that were received.
    """
    leaves, structure = jax.tree.flatten(tree)
    dtypes = [dtype or leaf.dtype for leaf in leaves]
    # As bits: on CPU, XLA sends narrow floats as float32.
    bits = [
        lax.bitcast_convert_type(leaf.astype(dtype), f"uint{8 * dtype.itemsize}")
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
    parts: dict[Any, list[int]] = {}  # the leaves in each message
    for index, leaf in enumerate(bits):
        is_small = leaf.size * leaf.dtype.itemsize <= small
        parts.setdefault(leaf.dtype if is_small else index, []).append(index)
    messages = [
        bits[of[0]] if len(of) == 1 else jnp.concatenate([bits[index].ravel() for index in of])
        for of in parts.values()
    ]

    def unpack(received: Sequence[Array]) -> Any:
        found = list(leaves)
        for of, message in zip(parts.values(), received, strict=True):
            ends = np.cumsum([bits[index].size for index in of])[:-1]
            for index, part in zip(of, jnp.split(message.ravel(), ends), strict=True):
                leaf = lax.bitcast_convert_type(part.reshape(leaves[index].shape), dtypes[index])
                found[index] = leaf.astype(leaves[index].dtype)
        return structure.unflatten(found)

    return messages, unpack
