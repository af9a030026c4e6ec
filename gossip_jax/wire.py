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
    sent = [leaf.astype(dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
    # Narrow floats as bits: on CPU, XLA sends them as float32.
    sent = [bits(leaf) if leaf.dtype.itemsize < 4 else leaf for leaf in sent]
    parts: dict[Any, list[int]] = {}  # the leaves in each message
    for index, leaf in enumerate(sent):
        is_small = leaf.size * leaf.dtype.itemsize <= small
        parts.setdefault(leaf.dtype if is_small else index, []).append(index)
    messages = [
        sent[of[0]] if len(of) == 1 else jnp.concatenate([sent[index].ravel() for index in of])
        for of in parts.values()
    ]

    def unpack(received: Sequence[Array]) -> Any:
        found = list(leaves)
        for of, message in zip(parts.values(), received, strict=True):
            ends = np.cumsum([sent[index].size for index in of])[:-1]
            for index, part in zip(of, jnp.split(message.ravel(), ends), strict=True):
                leaf = part.reshape(leaves[index].shape)
                found[index] = from_bits(leaf, dtypes[index]).astype(leaves[index].dtype)
        return structure.unflatten(found)

    return messages, unpack


def bits(array: Array) -> Array:
    """The same bits as unsigned integers. On CPU this is a copy."""
    return lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")


def from_bits(array: Array, dtype: np.dtype) -> Array:
    """What `bits` was made of; an array that has the dtype already stays as it is."""
    return array if array.dtype == dtype else lax.bitcast_convert_type(array, dtype)
