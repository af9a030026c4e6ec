"""Randomness of a run: the one place that derives keys from (seed, purpose, step, worker)."""

import enum
import operator

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Key


class Purpose(enum.IntEnum):
    """What a key is for. The numbers are part of a run's reproducibility: append, never renumber."""

    ROUNDS = 0
    INITIALISE = 1
    SHUFFLE = 2
    MODEL = 3  # dropout and whatever else the loss draws
    SPLIT = 4
    ABSENCE = 5
    COMPRESSION = 6


def run_key(seed: int) -> Key[Array, ""]:
    """The key of a whole run, of a pinned implementation: equal bits on every backend and version.

    Nor does a setting of JAX change it: of `jax.random.key` it is the value without any.
    """
    data = jnp.array([0, operator.index(seed) & 0xFFFF_FFFF], jnp.uint32)
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def derive(key: Key[Array, ""], purpose: Purpose, *indices: ArrayLike) -> Key[Array, ""]:
    """The key for one purpose, then for each index in turn (an epoch, a step, a worker)."""
    key = jax.random.fold_in(key, int(purpose))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key
