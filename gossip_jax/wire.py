"""A replica as it travels: in how many messages, and in what type."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SMALL = 128 * 1024  # bytes up to which copying a leaf costs less than a message of its own


def pack(tree: Any, small: int) -> tuple[list[Array], Callable[[Sequence[Array]], Any]]:
    """The parts that a replica travels in: each large leaf, and all small ones of a type together.

    Args:
      tree: one worker's replica.
      small: the bytes up to which a leaf is small.

    Returns:
      The parts, and what makes a tree like this one of parts like these.
    """
    leaves, structure = jax.tree.flatten(tree)
    together: dict[Any, list[int]] = {}  # the leaves in each part
    for index, leaf in enumerate(leaves):
        is_small = leaf.size * leaf.dtype.itemsize <= small
        together.setdefault(leaf.dtype if is_small else index, []).append(index)
    parts = [
        leaves[of[0]] if len(of) == 1 else jnp.concatenate([leaves[index].ravel() for index in of])
        for of in together.values()
    ]

    def unpack(parts: Sequence[Array]) -> Any:
        found = list(leaves)
        for of, part in zip(together.values(), parts, strict=True):
            ends = np.cumsum([leaves[index].size for index in of])[:-1]
            for index, piece in zip(of, jnp.split(part.ravel(), ends), strict=True):
                found[index] = piece.reshape(leaves[index].shape)
        return structure.unflatten(found)

    return parts, unpack


def rounded(array: Array, dtype: np.dtype | None) -> Array:
    """What the wire type holds of an array, in the array's own type; all of it, where that is None."""
    if dtype is None:
        return array
    # Not by casting there and back, which XLA may leave out (xla_allow_excess_precision).
    wire = jnp.finfo(dtype)
    return lax.reduce_precision(array, wire.nexp, wire.nmant)


def encoded(array: Array, dtype: np.dtype | None) -> Array:
    """A message: the array in the wire type. Narrow floats as bits, since XLA sends them as float32 on
    CPU; others as they are, since there a change to bits is a copy.
    """
    array = array.astype(dtype or array.dtype)
    return bits(array) if array.dtype.itemsize < 4 else array


def decoded(message: Array, dtype: np.dtype | None, own: np.dtype) -> Array:
    """What was `encoded` in the wire type, in its own type."""
    return from_bits(message, dtype or own).astype(own)


def bits(array: Array) -> Array:
    """The same bits as unsigned integers."""
    return lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")


def from_bits(array: Array, dtype: np.dtype) -> Array:
    """What `bits` was made of; an array that has the dtype already stays as it is."""
    return array if array.dtype == dtype else lax.bitcast_convert_type(array, dtype)
