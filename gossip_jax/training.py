"""The state of a run, one update, and an epoch as one loop: all as one worker sees it.

Place them on devices with `gossip_jax.place(...).map(...)`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.typing import ArrayLike

from gossip_jax import exchange, keys
from gossip_jax.draws import Draw
from gossip_jax.keys import Purpose
from gossip_jax.rounds import Round, is_known_silent, known_to_talk, silence

Loss = Callable[[Any, Any, Any, Array], tuple[Array, Any]]
"""(params, model_state, batch, key) -> (loss, model_state)"""

Update = Callable[[Any, Any, Round, Array], tuple[Any, Array]]
"""(state, batch, round, key) -> (state, loss)"""


class WorkerState(NamedTuple):
    """What one worker holds. A run's state is the same, stacked over workers: [W, ...]."""

    params: Any  # its replica θ_i
    opt_state: Any  # of the optimizer and the protocol; stays local
    model_state: Any  # what else the model keeps, such as batch-norm statistics; stays local


def init_worker(params: Any, model_state: Any, optimizer: optax.GradientTransformation) -> WorkerState:
    """A worker's state before the first update. All workers must start from the same parameters."""
    return WorkerState(params, optimizer.init(params), model_state)


@functools.partial(jax.jit, static_argnames=("draw", "num_updates"))
def draw_rounds(draw: Draw, key: Array, first_step: ArrayLike, num_updates: int) -> Round:
    """The rounds of consecutive updates, stacked. Compiled once for each `draw` and `num_updates`.

    Args:
      draw: the law of the rounds.
      key: the run's key.
      first_step: the update to start with, counted from 1.
      num_updates: T.

    Returns:
      A round with `peer` int32 [T, W] and `step` int32 [T].
    """
    steps = first_step + jnp.arange(num_updates, dtype=jnp.int32)
    return jax.vmap(draw, in_axes=(None, 0))(keys.derive(key, Purpose.ROUNDS), steps)


def train_update(
    loss: Loss, optimizer: optax.GradientTransformationExtraArgs
) -> Callable[[WorkerState, Any, Round, Array], tuple[WorkerState, Array]]:
    """One update of one worker: `(state, batch, round, key) -> (state, loss)`."""

    def update(state: WorkerState, batch: Any, round: Round, key: Array) -> tuple[WorkerState, Array]:
        gradient = jax.value_and_grad(loss, has_aux=True)
        with jax.named_scope("gradient"):
            (value, model_state), grads = gradient(state.params, state.model_state, batch, key)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params, round=round)
            params = optax.apply_updates(state.params, updates)
        return WorkerState(params, opt_state, model_state), value

    return update


def train_epoch(
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    batch_size: int,
    axis_name: str = "workers",
    lockstep: str | None = None,
    wrap: Callable[[Update], Update] = lambda update: update,
) -> Callable[[WorkerState, Any, Round, Array], tuple[WorkerState, Array]]:
    """An epoch of one worker, as one loop: `(state, shard, rounds, key) -> (state, mean loss)`.

    The shard is this worker's part of the training set, a pytree of arrays [n, ...]. It is
    shuffled at every epoch, and the examples that do not fill a last batch wait for another one.
    Share `rounds` and `key` between workers (`in_axes=None`).

    Updates in silent rounds are compiled for themselves, without the exchange of a pairwise protocol:
    they cost what they would without one. Where all are known to be silent (`rounds.silence`), nothing
    else is compiled. An epoch cannot be differentiated in reverse mode.

    Args:
      loss: the training loss of one worker.
      optimizer: the local optimizer and the protocol, chained.
      batch_size: examples in one worker's mini-batch.
      axis_name: the worker axis.
      lockstep: an axis of `jax.vmap` over several runs, each with rounds of its own. They then go
        through their updates together, and where one of them talks, as if all did.
      wrap: makes of the update another one, such as `gossip_jax.health.watching` does; the state is
        then what that one takes.

    Returns:
      The epoch. It makes one update for each of its stacked rounds: `n // batch_size` of them, at most.

    Raises:
      ValueError: when the epoch is traced, the rounds are not stacked, or too many for the shard.
    """
    update = wrap(train_update(loss, optimizer))

    def epoch(state: WorkerState, shard: Any, rounds: Round, key: Array) -> tuple[WorkerState, Array]:
        if rounds.peer.ndim != 2:
            raise ValueError(
                f"train_epoch: rounds must be stacked, with peer [T, W]; got {rounds.peer.shape}"
            )
        num_updates, num_examples = rounds.step.shape[0], jax.tree.leaves(shard)[0].shape[0]
        if num_updates * batch_size > num_examples:
            raise ValueError(
                f"train_epoch: {num_updates} updates of {batch_size} examples need a shard of "
                f"{num_updates * batch_size}; got {num_examples}"
            )
        worker = lax.axis_index(axis_name)
        shuffle_key = keys.derive(key, Purpose.SHUFFLE, rounds.step[0], worker)
        order = jax.random.permutation(shuffle_key, num_examples)
        batches = order[: num_updates * batch_size].reshape(num_updates, batch_size)

        def step(carry: Any, talking: bool) -> Any:
            t, state, total = carry
            round = silence(rounds.num_workers, rounds.step[t])
            if talking:
                round = known_to_talk(jax.tree.map(lambda leaf: leaf[t], rounds))
            key_of_step = keys.derive(key, Purpose.MODEL, round.step, worker)
            batch = jax.tree.map(lambda leaf: leaf[batches[t]], shard)
            state, value = update(state, batch, round, key_of_step)
            return t + 1, state, total + value.astype(jnp.float32)

        def advance(carry: Any, talking: bool) -> Any:
            """As many updates as follow each other in rounds that talk, or in silent ones."""

            def is_next(carry: Any) -> Array:
                t, *_ = carry
                return (t < num_updates) & (talks[t] == talking)

            return lax.while_loop(is_next, functools.partial(step, talking=talking), carry)

        def advance_to_silence(carry: Any) -> Any:
            if is_known_silent(rounds):
                return step(carry, talking=False)
            return advance(advance(carry, talking=False), talking=True)

        talks = (rounds.peer >= 0).any(axis=1)
        if lockstep is not None:
            talks = lax.pmax(talks.astype(jnp.int32), lockstep) > 0
        _, state, total = lax.while_loop(
            lambda carry: carry[0] < num_updates,
            advance_to_silence,
            (jnp.int32(0), state, exchange.varying(jnp.float32(0), axis_name)),
        )
        return state, total / num_updates

    return epoch
