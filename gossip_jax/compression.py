"""Compressors: a small message for an array, and what is made of it where it arrives.

Messages are bytes, so that what is counted is what goes over the wire. An array of zeros always comes
back as zeros.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gossip_jax import checks


@dataclasses.dataclass(frozen=True)
class Compressor:
    """How an array is sent.

    Args:
      name: what it is called, with its arguments.
      encode: `(array, shared, own) -> message`, from an array of floating point of any shape to uint8
        [n]. `shared` is a key that all workers have in common at an update, `own` one of each.
      decode: `(message, shape, dtype, shared) -> array`, of what was encoded with the same key.
    """

    name: str
    encode: Callable[[Array, Array, Array], Array]
    decode: Callable[[Array, Sequence[int], Any, Array], Array]

    def message(self, like: Any) -> Any:
        """The shapes of the messages for a pytree of arrays, or of their shapes."""
        key = jax.random.key(0)

        def of_leaf(leaf: Any) -> Any:
            return jax.eval_shape(self.encode, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), key, key)

        return jax.tree.map(of_leaf, like)


def identity() -> Compressor:
    """All of an array, as it is."""

    def encode(array: Array, shared: Array, own: Array) -> Array:
        del shared, own
        return _to_bytes(array)

    def decode(message: Array, shape: Sequence[int], dtype: Any, shared: Array) -> Array:
        del shared
        return _from_bytes(message, dtype).reshape(shape)

    return Compressor("identity()", encode, decode)


def top_k(fraction: float, chunk: int | None = None) -> Compressor:
    """The entries of largest magnitude, as they are; the others as zeros. Biased.

    Args:
      fraction: of the entries of an array, in (0, 1]; at least one is sent.
      chunk: where given, so many entries at a time are judged among themselves, up to 65536: an index
        then takes two bytes, not four.

    Raises:
      ValueError: an argument is out of range.
    """
    fraction = _fraction("top_k", fraction)
    if chunk is not None:
        chunk = checks.at_least_one("top_k", "chunk", chunk)
        if chunk > 65536:
            raise ValueError(f"top_k: chunk must be up to 65536; got {chunk}")

    def layout(size: int) -> tuple[int, int, int, Any]:
        """Chunks, entries in one, entries sent of one, and the type of an index."""
        entries = max(min(chunk or size, size), 1)
        return -(-size // entries), entries, _count(fraction, entries), "uint16" if chunk else "int32"

    def encode(array: Array, shared: Array, own: Array) -> Array:
        del shared, own
        if not array.size:
            return jnp.zeros(0, jnp.uint8)
        chunks, entries, count, index_type = layout(array.size)
        rows = jnp.pad(array.ravel(), (0, chunks * entries - array.size)).reshape(chunks, entries)
        _, found = lax.top_k(jnp.abs(rows), count)
        values = jnp.take_along_axis(rows, found, axis=1)
        return jnp.concatenate([_to_bytes(values), _to_bytes(found.astype(index_type))])

    def decode(message: Array, shape: Sequence[int], dtype: Any, shared: Array) -> Array:
        del shared
        size = math.prod(shape)
        if not size:
            return jnp.zeros(shape, dtype)
        chunks, entries, count, index_type = layout(size)
        end = chunks * count * np.dtype(dtype).itemsize
        values = _from_bytes(message[:end], dtype).reshape(chunks, count)
        found = _from_bytes(message[end:], index_type).astype(jnp.int32).reshape(chunks, count)
        rows = jnp.zeros((chunks, entries), dtype)
        row = jnp.broadcast_to(jnp.arange(chunks)[:, None], found.shape)
        return rows.at[row, found].set(values).ravel()[:size].reshape(shape)

    return Compressor(f"top_k({fraction:g}{f', {chunk}' if chunk else ''})", encode, decode)


def random_k(fraction: float) -> Compressor:
    """Entries at random, as they are; the others as zeros. Biased: nothing is scaled up.

    All workers draw the same ones at an update, so that no indices are sent.

    Args:
      fraction: of the entries of an array, in (0, 1]; at least one is sent.

    Raises:
      ValueError: the fraction is out of range.
    """
    fraction = _fraction("random_k", fraction)

    def entries(size: int, shared: Array) -> Array:
        return jax.random.permutation(shared, size)[: _count(fraction, size)]

    def encode(array: Array, shared: Array, own: Array) -> Array:
        del own
        return _to_bytes(array.ravel()[entries(array.size, shared)])

    def decode(message: Array, shape: Sequence[int], dtype: Any, shared: Array) -> Array:
        size = math.prod(shape)
        array = jnp.zeros(size, dtype)
        return array.at[entries(size, shared)].set(_from_bytes(message, dtype)).reshape(shape)

    return Compressor(f"random_k({fraction:g})", encode, decode)


def sign() -> Compressor:
    """The signs, a bit each, and the mean magnitude of the array. A zero counts as positive. Biased."""

    def encode(array: Array, shared: Array, own: Array) -> Array:
        del shared, own
        scale = jnp.abs(array).mean() if array.size else jnp.zeros((), array.dtype)
        return jnp.concatenate([_to_bytes(scale[None]), jnp.packbits(array.ravel() >= 0)])

    def decode(message: Array, shape: Sequence[int], dtype: Any, shared: Array) -> Array:
        del shared
        width = np.dtype(dtype).itemsize
        (scale,) = _from_bytes(message[:width], dtype)
        is_positive = jnp.unpackbits(message[width:], count=math.prod(shape)) == 1
        return jnp.where(is_positive, scale, -scale).reshape(shape)

    return Compressor("sign()", encode, decode)


def quantise(bits: int) -> Compressor:
    """Whole multiples of the array's norm over 2^(bits - 1) - 1, rounded at random: QSGD. Unbiased.

    Args:
      bits: of an entry, its sign included: 2, 4 or 8.

    Raises:
      ValueError: it is none of these.

    References:
      Alistarh, Grubic, Li, Tomioka, Vojnovic, *QSGD*, 2017 (https://arxiv.org/abs/1610.02132)
    """
    if bits not in (2, 4, 8):
        raise ValueError(f"quantise: bits must be 2, 4 or 8; got {bits!r}")
    levels, in_byte = 2 ** (bits - 1) - 1, 8 // bits

    def encode(array: Array, shared: Array, own: Array) -> Array:
        del shared
        flat = array.ravel()
        norm = jnp.sqrt((flat * flat).sum())
        share = jnp.abs(flat) * (levels / jnp.where(norm == 0, 1, norm))
        least = jnp.floor(share)
        is_up = jax.random.uniform(own, flat.shape, flat.dtype) < share - least
        level = jnp.where(flat < 0, -1, 1) * (least + is_up.astype(flat.dtype)).astype(jnp.int32)
        codes = (level + levels).astype(jnp.uint8)
        codes = jnp.pad(codes, (0, -flat.size % in_byte)).reshape(-1, in_byte)
        shifts = np.broadcast_to(np.arange(in_byte, dtype=np.uint8) * np.uint8(bits), codes.shape)
        packed = (codes << shifts).sum(axis=1, dtype=jnp.uint8)
        return jnp.concatenate([_to_bytes(norm[None]), packed])

    def decode(message: Array, shape: Sequence[int], dtype: Any, shared: Array) -> Array:
        del shared
        size, width = math.prod(shape), np.dtype(dtype).itemsize
        (norm,) = _from_bytes(message[:width], dtype)
        packed = jnp.broadcast_to(message[width:][:, None], (message.size - width, in_byte))
        shifts = np.broadcast_to(np.arange(in_byte, dtype=np.uint8) * np.uint8(bits), packed.shape)
        codes = (packed >> shifts) & np.uint8(2**bits - 1)
        level = codes.ravel()[:size].astype(jnp.int32) - levels
        return (level.astype(dtype) * (norm / levels)).reshape(shape)

    return Compressor(f"quantise({bits})", encode, decode)


def _fraction(owner: str, value: Any) -> float:
    return checks.in_range(owner, "fraction", value, "(0, 1]", lambda number: 0 < number <= 1)


def _count(fraction: float, size: int) -> int:
    return min(max(math.ceil(fraction * size - 1e-9), 1), size)


def _to_bytes(array: Array) -> Array:
    return lax.bitcast_convert_type(array, jnp.uint8).ravel()


def _from_bytes(message: Array, dtype: Any) -> Array:
    dtype = np.dtype(dtype)
    if dtype.itemsize == 1:
        return lax.bitcast_convert_type(message, dtype)
    return lax.bitcast_convert_type(message.reshape(-1, dtype.itemsize), dtype)
