"""A round: who contacted whom at one update, and what follows from it."""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """Who initiated contact with whom at one update: the same value on every worker.

    A protocol takes its round as `optimizer.update(..., round=round)`. Because the round is an
    argument, no message is needed to agree on peers and a run can be replayed from its rounds.
    Under `jax.vmap` pass it with `in_axes=None`, so that a silent round costs nothing.

    Args:
      peer: integers [W]; `peer[i]` is the worker with whom worker i initiated contact, -1 for
        nobody. Stacked rounds, as `jax.lax.scan` takes them, have leading axes: [..., W].
      step: the update that the round belongs to, counted from 1: an integer, or [...] for
        stacked rounds.

    Raises:
      TypeError: `peer` or `step` does not hold integers.
      ValueError: `peer` has no axis, names a worker that does not exist or the worker itself,
        or `step` does not have the leading shape of `peer`. Values are checked only where they
        are known, that is outside jit.

    Examples:
      >>> round = Round(peer=[1, -1, 0, -1])
      >>> in_contact(round).astype(int)
      Array([[0, 1, 1, 0],
             [1, 0, 0, 0],
             [1, 0, 0, 0],
             [0, 0, 0, 0]], dtype=int32)
    """

    peer: Any  # int32 [..., W]
    step: Any = 1  # int32 [...]
    _is_known_to_talk: bool = dataclasses.field(default=False, init=False, repr=False)

    def __post_init__(self):
        peer = as_int32("peer", self.peer)
        step = as_int32("step", self.step)
        if peer.ndim == 0:
            raise ValueError("Round: peer must have one entry for each worker, [W]; got a scalar")
        if step.ndim == 0:
            step = jnp.broadcast_to(step, peer.shape[:-1])
        if step.shape != peer.shape[:-1]:
            raise ValueError(
                f"Round: step must be a scalar or have the leading shape of peer, "
                f"{peer.shape[:-1]}; got {step.shape}"
            )
        if not isinstance(peer, Tracer):
            _check_peers(np.asarray(peer))
        object.__setattr__(self, "peer", peer)
        object.__setattr__(self, "step", step)

    @property
    def num_workers(self) -> int:
        """W, the number of workers that the round is about."""
        return self.peer.shape[-1]

    def tree_flatten_with_keys(self):
        """For JAX: the leaves, `peer` and `step`, with their names."""
        key = jax.tree_util.GetAttrKey
        return ((key("peer"), self.peer), (key("step"), self.step)), self._is_known_to_talk

    @classmethod
    def tree_unflatten(cls, is_known_to_talk, children):
        """For JAX: not through __init__, since it rebuilds pytrees around what is no array, too."""
        round = object.__new__(cls)
        for name, child in zip(("peer", "step"), children, strict=True):
            object.__setattr__(round, name, child)
        object.__setattr__(round, "_is_known_to_talk", is_known_to_talk)
        return round


def silence(num_workers: int, step: ArrayLike) -> Round:
    """A round without contact, known to be silent when the program is compiled: it then costs nothing.

    Args:
      num_workers: W.
      step: the update it belongs to, or [...], for stacked rounds.
    """
    # Not through __init__, which makes a traced array of the peers.
    return Round.tree_unflatten(False, (np.full((*jnp.shape(step), num_workers), -1, np.int32), step))


def is_known_silent(round: Round) -> bool:
    """Whether a round, or stacked ones, have no contact, as far as is known when one compiles."""
    return isinstance(round.peer, np.ndarray) and bool((round.peer < 0).all())


def known_to_talk(round: Round) -> Round:
    """The same round, known to have contact when the program is compiled: nothing asks for it again."""
    return Round.tree_unflatten(True, (round.peer, round.step))


def is_known_to_talk(round: Round) -> bool:
    """Whether a round is of `known_to_talk`."""
    return round._is_known_to_talk


def initiated(round: Round) -> Array:
    """Who picked whom: `S[i, k]` is true where worker i initiated contact with worker k.

    Args:
      round: a round, or stacked rounds.

    Returns:
      bool [..., W, W], false on the diagonal.
    """
    workers = jnp.arange(round.num_workers)
    return (round.peer[..., :, None] == workers) & (workers[:, None] != workers)


def in_contact(round: Round) -> Array:
    """Who exchanges with whom, whoever of the two initiated: `S | S^T`.

    Args:
      round: a round, or stacked rounds.

    Returns:
      bool [..., W, W], symmetric, false on the diagonal. A pair that picked each other is one pair.
    """
    picked = initiated(round)
    return picked | picked.swapaxes(-1, -2)


def as_int32(name: str, value: ArrayLike) -> Array:
    """`value` as int32; TypeError where it does not hold integers, ValueError where they do not fit."""
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"Round: {name} must hold integers; got {value.dtype}")
    if not isinstance(value, Tracer) and value.dtype.itemsize >= 4:
        wide = np.asarray(value)
        if (wide != wide.astype(np.int32)).any():
            raise ValueError(f"Round: {name} must fit 32 bits; got {value}")
    return jnp.asarray(value, jnp.int32)


def _check_peers(peer: np.ndarray) -> None:
    num_workers = peer.shape[-1]
    wrong = (peer < -1) | (peer >= num_workers) | (peer == np.arange(num_workers))
    if wrong.any():
        *_, worker = where = tuple(map(operator.itemgetter(0), np.nonzero(wrong)))
        raise ValueError(
            f"Round: peer[{worker}] is {peer[where]}; allowed are -1 (nobody) and the other "
            f"workers, 0 to {num_workers - 1} without {worker}"
        )
