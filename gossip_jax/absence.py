"""Workers that sit out updates, neither training nor talking: who, and what an update then is.

Like a round, it is a value that all workers share, bool [W]: nobody has to be told.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Key

from gossip_jax import axis, keys
from gossip_jax.keys import Purpose
from gossip_jax.rounds import Round
from gossip_jax.training import Update


@functools.partial(jax.jit, static_argnames=("num_updates", "num_workers"))
def draw_absences(
    key: Key[Array, ""], first_step: ArrayLike, num_updates: int, num_workers: int, rate: ArrayLike
) -> Bool[Array, "T W"]:
    """Who sits out which of consecutive updates: each worker, at each, independently.

    Args:
      key: the run's key.
      first_step: the update to start with, counted from 1.
      num_updates: T.
      num_workers: W.
      rate: the probability, in [0, 1].

    Returns:
      bool [T, W].
    """
    key = keys.derive(key, Purpose.ABSENCE)
    steps = first_step + jnp.arange(num_updates, dtype=jnp.int32)
    coins = jax.vmap(
        lambda step: jax.random.uniform(jax.random.fold_in(key, step), (num_workers,), jnp.float32)
    )(steps)
    return coins < rate


def without(rounds: Round, absent: ArrayLike) -> Round:
    """The rounds, but for the contacts of workers that sit out, whoever of the two initiated.

    Args:
      rounds: a round, or stacked rounds, of W workers.
      absent: bool [..., W].
    """
    absent = jnp.asarray(absent)
    if rounds.peer is None:
        away = absent if rounds.away is None else rounds.away | absent
        return rounds.replace(away=away)
    of_peer = jnp.take_along_axis(absent, jnp.maximum(rounds.peer, 0), axis=-1)
    return rounds.replace(peer=jnp.where(absent | of_peer, -1, rounds.peer))


def sitting_out(
    update: Update,
    absent: Bool[Array, "T W"],
    first_step: ArrayLike,
    axis_name: str = "workers",
) -> Update:
    """An update that leaves a worker that sits out as it is, to the bit; its loss then counts 0.

    Hand it the rounds that are left of the run's by `without`. It is not for protocols in which all
    workers talk at once: those wait for everybody.

    Args:
      update: one worker's, `(state, batch, round, key) -> (state, loss)`.
      absent: bool [T, W], the same on every worker.
      first_step: the update that `absent` starts with.
      axis_name: the worker axis.
    """

    def update_or_not(state: Any, batch: Any, round: Round, key: Array) -> tuple[Any, Array]:
        is_absent = absent[round.step - first_step, axis.worker_index(axis_name)]
        moved, loss = update(state, batch, round, key)
        # Selected, not skipped: all workers go through the conditionals around an exchange.
        return jax.tree.map(
            lambda before, after: jnp.where(is_absent, before, after),
            (state, jnp.zeros_like(loss)),
            (moved, loss),
        )

    return update_or_not
