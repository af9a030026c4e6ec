"""Streaming DiLoCo (Douillard et al., 2025, https://arxiv.org/abs/2501.18512): DiLoCo, part by part.

every τ/P updates, for one of P fragments f in turn:  Δ_f = (1/W) Σ_k (φ - θ_k - u_k)_f
delay updates later:  φ_f ← outer(φ_f, Δ_f),    θ_f ← m θ_f + (1 - m) φ_f
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from gossip_jax import checks, exchange, traffic
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._outer import copied, moved, stepped, towards, wide_shapes
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.protocols.diloco import OUTER, checked_outer, nesterov, period_option
from gossip_jax.rounds import Round
from gossip_jax.spec import Option, Spec
from gossip_jax.traffic import Traffic


class StreamingState(NamedTuple):
    """Of the outer optimizers, one for each fragment; equal on every worker."""

    params: Any  # φ: as the parameters, in float32 or wider
    optimizers: Any  # the states of the outer optimizers, one for each fragment
    flight: Any  # Δ, as φ: what was started and has not been taken yet; None where nothing is late


def streaming_diloco(
    outer: optax.GradientTransformation | None = None,
    period: int = 100,
    fragments: int = 4,
    delay: int = 0,
    merge: float = 0.0,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Streaming DiLoCo: as `diloco`, but a part of the parameters at a time, and with some delay.

    The leaves of the parameters, in their order, are cut into P fragments of about equal size. Every
    τ / P updates one of them has its turn: its mean move over workers is started, and `delay` updates
    later the outer optimizer takes it, and every worker goes on from `m θ + (1 - m) φ` in this
    fragment, m = `merge`. In a period each fragment has one turn: as much is sent as by `diloco`, but
    at most a part of it at once. Up to the first update that τ / P divides nothing happens. With one
    fragment, no delay and m = 0 it is `diloco`.

    It keeps φ and the outer momentum, and with a delay one more copy of the parameters for what is in
    flight. In one program nothing is gained in time by the delay: it is there for what it does to
    training.

    Args:
      outer: any optax optimizer; where None, SGD with learning rate 0.7 and Nesterov momentum 0.9.
      period: the communication period τ, a multiple of `fragments`.
      fragments: P, 1 or more. There are no more than leaves that are used: the others stay empty.
      delay: the updates between start and use, 0 or more, and less than τ / P.
      merge: m, in [0, 1): what a worker keeps of its own.
      axis_name: the worker axis.

    Returns:
      A transformation whose state is a `StreamingState`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`, of which it uses the step. Start all replicas equal.

    Raises:
      ValueError: an argument is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: `outer` is no optimizer; in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.adamw(4e-4), streaming_diloco(period=100, delay=5, merge=0.5))

    References:
      Douillard et al., *Streaming DiLoCo with overlapping communication*, 2025
      (https://arxiv.org/abs/2501.18512)
    """
    own = "streaming_diloco"
    outer = nesterov() if outer is None else outer
    checked_outer(own, outer)
    num_fragments = checks.at_least_one(own, "fragments", fragments)
    period = checks.at_least_one(own, "period", period)
    if period % num_fragments:
        raise ValueError(
            f"{own}: period must be a multiple of fragments, {num_fragments}; got {period}"
        )
    turn = period // num_fragments
    if not (isinstance(delay, int) and 0 <= delay < turn):
        raise ValueError(
            f"{own}: delay must be a whole number in [0, {turn}), less than period / fragments; got "
            f"{delay!r}"
        )
    merge = checks.in_range(own, "merge", merge, "[0, 1)", lambda number: 0 <= number < 1)

    def init(params: Any) -> StreamingState:
        start = copied(params)
        leaves = jax.tree.leaves(start)
        states = [outer.init([leaves[i] for i in of]) for of in _fragments(leaves, num_fragments)]
        flight = jax.tree.map(jnp.zeros_like, start) if delay else None
        return StreamingState(start, states, flight)

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(own, params, round, axis_name)
        leaves, structure = jax.tree.flatten(state.params)
        if not leaves:
            return updates, state
        of_fragment = _fragments(leaves, num_fragments)

        def start(fragment: int, carry: Any) -> Any:
            updates, state = carry
            point = jax.tree.leaves(moved(params, updates))
            slow, flight = jax.tree.leaves(state.params), jax.tree.leaves(state.flight)
            which = of_fragment[fragment]
            means = exchange.mean([slow[i] - point[i] for i in which], axis_name) if which else []
            for i, mean in zip(which, means, strict=True):
                flight[i] = mean
            return updates, state._replace(flight=structure.unflatten(flight))

        def take(fragment: int, carry: Any) -> Any:
            updates, state = carry
            point = jax.tree.leaves(moved(params, updates))
            slow, states = jax.tree.leaves(state.params), list(state.optimizers)
            flight, which = jax.tree.leaves(state.flight), of_fragment[fragment]
            gradient = [flight[i] for i in which]
            new, states[fragment] = stepped(outer, gradient, states[fragment], [slow[i] for i in which])
            given, own = jax.tree.leaves(updates), jax.tree.leaves(params)
            for i, leaf in zip(which, new, strict=True):
                slow[i] = leaf
                (given[i],) = towards([merge * point[i] + (1 - merge) * leaf], [own[i]], [given[i]])
            state = StreamingState(structure.unflatten(slow), states, state.flight)
            return jax.tree.unflatten(jax.tree.structure(updates), given), state

        def both(fragment: int, carry: Any) -> Any:
            updates, state = carry
            held = state._replace(flight=jax.tree.map(jnp.zeros_like, state.params))
            updates, state = take(fragment, start(fragment, (updates, held)))
            return updates, state._replace(flight=None)

        def in_turn(step: Array, of: Callable[[int, Any], Any], carry: Any) -> Any:
            branches = [functools.partial(of, fragment) for fragment in range(num_fragments)]

            def branch(carry: Any) -> Any:
                return lax.switch((step // turn) % num_fragments, branches, carry)

            is_due = (step > 0) & (step % turn == 0)
            return exchange.when(is_due, branch, carry, axis_name)

        carry = updates, state
        if not delay:
            return in_turn(round.step, both, carry)
        # What was started first is taken first: the two are of different updates.
        return in_turn(round.step, start, in_turn(round.step - delay, take, carry))

    return Protocol(init, update, "after", axis_name)


def _fragments(leaves: Sequence[Any], num_fragments: int) -> list[list[int]]:
    """The numbers of the leaves in each fragment: consecutive ones, of about equal size."""
    sizes = np.array([leaf.size for leaf in leaves], float)
    middle = np.cumsum(sizes) - sizes / 2
    of_leaf = np.minimum((middle * num_fragments // max(sizes.sum(), 1)).astype(int), num_fragments - 1)
    return [np.flatnonzero(of_leaf == fragment).tolist() for fragment in range(num_fragments)]


def _traffic(rounds: Round, params: Any, period: int, fragments: int, **_: Any) -> Traffic:
    leaves = jax.tree.leaves(wide_shapes(params))
    turn, total = period // fragments, traffic.silence(rounds.num_workers)
    is_due, steps = traffic.due(rounds, turn), np.asarray(rounds.step)
    for fragment, which in enumerate(_fragments(leaves, fragments)):
        of_fragment = is_due & (steps // turn % fragments == fragment)
        if which:
            part = [leaves[i] for i in which]
            total += traffic.counted_collective(traffic.at(rounds, of_fragment), part)
    return total


SPEC = Spec(
    factory=streaming_diloco,
    label="streaming DiLoCo",
    short="SDiLoCo",
    summary="as DiLoCo, a part of the parameters at a time, with some delay",
    color="mediumseagreen",
    line="--",
    rounds="none",
    traffic=_traffic,
    options=(
        *OUTER,
        period_option(100),
        Option(
            name="fragments",
            kind=int,
            help="The parts in which the parameters are sent, of which --period is a multiple.",
            default=4,
        ),
        Option(
            name="delay",
            kind=int,
            help="The updates between sending and using a part.",
            default=0,
        ),
        Option(
            name="merge",
            kind=float,
            help="What a worker keeps of its own where a part is used.",
            default=0.0,
        ),
    ),
    make=lambda outer_learning_rate, outer_momentum, period, fragments, delay, merge: streaming_diloco(
        nesterov(outer_learning_rate, outer_momentum), period, fragments, delay, merge
    ),
    waits_for_all=True,
)
