"""Whether a worker's state is finite, and since when it is not."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from gossip_jax.rounds import Round
from gossip_jax.training import Update


class Watched(NamedTuple):
    """A worker's state, and when it turned NaN or infinite."""

    state: Any
    sick_from: Array  # int32 scalar: the update, counted from 1, that made it so; 0: it is finite


def is_finite(state: Any) -> Bool[Array, ""]:
    """Whether no value of one worker's state is NaN or infinite: bool scalar."""
    finite = [
        jnp.isfinite(leaf).all()
        for leaf in jax.tree.leaves(state)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.stack(finite).all() if finite else jnp.bool_(True)


@jax.jit
def finite_workers(states: Any) -> Bool[Array, " W"]:
    """Of all workers' states, leaves [W, ...], which are finite: bool [W]."""
    return jax.vmap(is_finite)(states)


def watching(update: Update) -> Update:
    """The same update of a `Watched` worker. It reads the whole state once more."""

    def watch(watched: Watched, batch: Any, round: Round, key: Array) -> tuple[Watched, Array]:
        state, loss = update(watched.state, batch, round, key)
        is_first = (watched.sick_from == 0) & ~is_finite(state)
        return Watched(state, jnp.where(is_first, round.step, watched.sick_from)), loss

    return watch
