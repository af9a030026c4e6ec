"""The state of a run, one update, and an epoch as one loop: all as one worker sees it.

Place them on devices with `gossip_jax.place(...).map(...)`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Key

from gossip_jax import axis, exchange, keys
from gossip_jax.draws import Draw
from gossip_jax.keys import Purpose
from gossip_jax.rounds import Round, all_routes, routes_in_use, silence

_MOST_BRANCHES = 8

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
def draw_rounds(draw: Draw, key: Key[Array, ""], first_step: ArrayLike, num_updates: int) -> Round:
    """The rounds of consecutive updates, stacked. Compiled once for each `draw` and `num_updates`.

    Args:
      draw: the law of the rounds.
      key: the run's key.
      first_step: the update to start with, counted from 1.
      num_updates: T.

    Returns:
      Stacked rounds, with `step` int32 [T].
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

    Updates in silent rounds are compiled for themselves, without an exchange: they cost what they would
    without a protocol. So are those in which one route is in use, and those with more. What cannot be,
    as `Round.num_routes` says, is not compiled. An epoch cannot be differentiated in reverse mode.

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
    # On CPU nothing travels while something else is computed, and the branches would copy the state.
    of_route = update if jax.default_backend() == "cpu" else by_route(update)

    def epoch(state: WorkerState, shard: Any, rounds: Round, key: Array) -> tuple[WorkerState, Array]:
        if rounds.step.ndim != 1:
            raise ValueError(
                f"train_epoch: rounds must be stacked, with step [T]; got {rounds.step.shape}"
            )
        num_updates, num_examples = rounds.step.shape[0], jax.tree.leaves(shard)[0].shape[0]
        if num_updates * batch_size > num_examples:
            raise ValueError(
                f"train_epoch: {num_updates} updates of {batch_size} examples need a shard of "
                f"{num_updates * batch_size}; got {num_examples}"
            )
        worker = axis.worker_index(axis_name)
        shuffle_key = keys.derive(key, Purpose.SHUFFLE, rounds.step[0], worker)
        order = jax.random.permutation(shuffle_key, num_examples)
        batches = order[: num_updates * batch_size].reshape(num_updates, batch_size)
        kinds, kind_of = _kinds(rounds, lockstep)

        def step(carry: Any, numbers: range) -> Any:
            t, state, total = carry
            # Of silent rounds even the routes are known.
            is_silent = numbers == range(1)
            round = jax.tree.map(lambda leaf: leaf[t], rounds)
            round = (
                silence(rounds.num_workers, round.step)
                if is_silent
                else round.replace(num_routes=numbers)
            )
            key_of_step = keys.derive(key, Purpose.MODEL, round.step, worker)
            batch = jax.tree.map(lambda leaf: leaf[batches[t]], shard)
            state, value = of_route(state, batch, round, key_of_step)
            return t + 1, state, total + value.astype(jnp.float32)

        def advance(carry: Any, kind: int, numbers: range) -> Any:
            """As many updates as follow each other in rounds of one kind."""

            def is_next(carry: Any) -> Array:
                t, *_ = carry
                return (t < num_updates) & (kind_of[t] == kind)

            return lax.while_loop(is_next, functools.partial(step, numbers=numbers), carry)

        def advance_all(carry: Any) -> Any:
            if len(kinds) == 1:
                return step(carry, kinds[0])
            for kind, numbers in enumerate(kinds):
                carry = advance(carry, kind, numbers)
            return carry

        _, state, total = lax.while_loop(
            lambda carry: carry[0] < num_updates,
            advance_all,
            (jnp.int32(0), state, exchange.varying(jnp.float32(0), axis_name)),
        )
        return state, total / num_updates

    return epoch


def _kinds(rounds: Round, lockstep: str | None) -> tuple[list[range], Array]:
    """What is compiled for itself, as numbers of routes; and which of these each round is, int32 [T].

    Silent updates cost nothing then, and an exchange over a single route is fused with the update.
    """
    numbers = rounds.num_routes
    count = routes_in_use(rounds).sum(axis=1)
    if lockstep is not None:  # of several runs, of which one may talk while another is silent
        kinds = [range(1), numbers] if max(numbers) else [range(1)]
        return kinds, lax.pmax((count > 0).astype(jnp.int32), lockstep)
    more = [number for number in numbers if number > 1]
    kinds = [range(number, number + 1) for number in (0, 1) if number in numbers]
    kind_of = jnp.where(count > 1, len(kinds), count if 0 in numbers else 0)
    if more:
        kinds.append(range(more[0], more[-1] + 1, numbers.step))
    return kinds, kind_of.astype(jnp.int32)


def by_route(update: Update) -> Update:
    """The same update, compiled once for each route, where a round is known to use a single one.

    What is sent over a route that is known travels while the gradient is computed. So one-peer graphs,
    which use one of a few routes at an update, communicate in the shadow of computing. It makes a
    program as many times larger as there are routes: more than eight, or routes of which two make an
    exchange, are left to a conditional around what is sent.
    """

    def of_one_route(state: Any, batch: Any, round: Round, key: Array) -> tuple[Any, Array]:
        graph = round.graph
        is_swap = graph.inverse is not None and (graph.inverse == np.arange(graph.num_routes)).all()
        if not (
            round.peer is None
            and round.num_routes == range(1, 2)
            and 1 < graph.num_routes == graph.num_turns <= _MOST_BRANCHES
            and (graph.inverse is None or is_swap)
        ):
            return update(state, batch, round, key)

        def on(turn: int, state: Any, batch: Any, key: Array) -> tuple[Any, Array]:
            known = all_routes(graph.turn(turn), round.step).replace(away=round.away)
            return update(state, batch, known, key)

        turns = [functools.partial(on, turn) for turn in range(graph.num_turns)]
        return lax.switch(round.routes.argmax(), turns, state, batch, key)

    return of_one_route
