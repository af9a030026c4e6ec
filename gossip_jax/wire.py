"""A replica as it travels: in how many messages, and in what type."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SMALL = 128 * 1024  # bytes up to which copying a leaf costs less than a message of its own
_CHUNKS = 8  # in which a replica travels, or fewer: what has arrived of one is used before the next


def chunks(leaves: Sequence[Array], small: int) -> list[list[int]]:
    """The numbers of the leaves that travel at once: an eighth of all bytes, or one larger leaf.

    Those that are small come first, so that they share their messages.
    """
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in leaves]
    enough = max(sum(sizes) / _CHUNKS, SMALL)
    found: list[list[int]] = []
    filled = enough
    for index in sorted(range(len(leaves)), key=lambda index: sizes[index] > small):
        if filled >= enough:
            found.append([])
            filled = 0
        found[-1].append(index)
        filled += sizes[index]
    return found


def pack(leaves: Sequence[Array], small: int) -> tuple[list[Array], Callable[[Sequence[Array]], Any]]:
    """The messages for some leaves: one for each large leaf, and one for all small ones of a type.

    Args:
      leaves: of one worker's replica.
      small: the bytes up to which a leaf is small.

    Returns:
      The messages, and what makes leaves like these of messages like those.
    """
    together: dict[Any, list[int]] = {}  # the leaves in each message
    for index, leaf in enumerate(leaves):
        is_small = leaf.size * leaf.dtype.itemsize <= small
        together.setdefault(leaf.dtype if is_small else index, []).append(index)
    messages = [
        leaves[of[0]] if len(of) == 1 else jnp.concatenate([leaves[index].ravel() for index in of])
        for of in together.values()
    ]

    def unpack(messages: Sequence[Array]) -> list[Array]:
        found = list(leaves)
        for of, message in zip(together.values(), messages, strict=True):
            ends = np.cumsum([leaves[index].size for index in of])[:-1]
            for index, piece in zip(of, jnp.split(message.ravel(), ends), strict=True):
                found[index] = piece.reshape(leaves[index].shape)
        return found

    return messages, unpack


def as_sent(array: Array, dtype: np.dtype | None) -> Array:
    """What the wire type holds of an array, in the array's own type; all of it, where that is None.

    What is finite stays so: beyond the largest number of the wire type stands that number. The
    derivative is taken as that of the array itself.
    """
    if dtype is None or dtype == array.dtype:
        return array
    return _as_sent(array, dtype)


@jax.custom_jvp
def _straight_through(array: Array, rounded: Array) -> Array:
    """The second value, with the derivative of the first."""
    del array
    return rounded


@_straight_through.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _straight_through(*primals), tangents[0]


def _as_sent(array: Array, dtype: np.dtype) -> Array:
    # Not by casting there and back, which XLA may leave out (xla_allow_excess_precision).
    wire = jnp.finfo(dtype)
    largest = min(float(wire.max), float(jnp.finfo(array.dtype).max))
    held = jnp.where(jnp.isfinite(array), jnp.clip(array, -largest, largest), array)
    rounded = lax.reduce_precision(lax.stop_gradient(held), wire.nexp, wire.nmant)
    return _straight_through(array, rounded)


def encoded(array: Array, dtype: np.dtype | None, as_integers: bool) -> Array:
    """What goes over the wire of an array that is `as_sent` in a type; in its own, where that is None.

    Args:
      array: what a worker sends.
      dtype: the wire type.
      as_integers: whether to send bits in any case. Narrow floats always travel as bits, since XLA
        sends them as float32 on CPU; others as they are, since there a change to bits is a copy.
    """
    array = array.astype(dtype or array.dtype)
    if array.dtype.itemsize >= 4 and not as_integers:
        return array
    return lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")


def decoded(message: Array, dtype: np.dtype | None, own: np.dtype) -> Array:
    """What was `encoded` in the wire type, in its own type."""
    dtype = np.dtype(dtype or own)
    is_bits = message.dtype != dtype
    return (lax.bitcast_convert_type(message, dtype) if is_bits else message).astype(own)
