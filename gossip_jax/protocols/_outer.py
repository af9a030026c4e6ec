"""What the protocols share that do something with all parameters every so many updates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import checks, exchange, traffic
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.rounds import Round

Meet = Callable[[Any, Any, Round], tuple[Any, Any]]
"""(point, state, round) -> (new point, new state): a point is the parameters after the local update."""


def periodic(
    owner: str, period: int, axis_name: str, init: Callable[[Any], Any], meet: Meet
) -> Protocol:
    """A protocol that moves each worker's parameters at the updates that τ divides.

    Args:
      owner: the protocol's public name, for its error messages.
      period: τ.
      axis_name: the worker axis.
      init: from parameters to the state.
      meet: what happens at such an update. It gets the point in float32, or wider.

    Raises:
      ValueError: τ is out of range.
    """
    period = checks.at_least_one(owner, "period", period)

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(owner, params, round, axis_name)

        def move(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            updates, state = carry
            new, state = meet(moved(params, updates), state, round)
            return towards(new, params, updates), state

        due = round.step % period == 0
        return exchange.when(due, move, (updates, state), axis_name)

    return Protocol(init, update, "after", axis_name)


def wide(tree: Any) -> Any:
    """The leaves in float32, or as they are where they are wider."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)


def wide_shapes(params: Any) -> Any:
    """The shapes of parameters, in float32 or wider: what is sent of them."""
    return jax.eval_shape(wide, traffic.as_sent(params))


def copied(params: Any) -> Any:
    """Parameters as a state keeps them: wide, and not in the same buffers, which may be donated."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), wide(params))


def moved(params: Any, updates: Any) -> Any:
    """The parameters after an update, wide."""
    return jax.tree.map(jnp.add, wide(params), jax.tree.map(_as, updates, wide(params)))


def towards(point: Any, params: Any, updates: Any) -> Any:
    """The updates, of their own types, that take parameters to a point."""

    def of_leaf(new: Array, p: Array, u: Array) -> Array:
        return (new - p.astype(new.dtype)).astype(u.dtype)

    return jax.tree.map(of_leaf, point, params, updates)


def stepped(
    outer: optax.GradientTransformation, gradient: Any, state: Any, params: Any
) -> tuple[Any, Any]:
    """Parameters after a step of an outer optimizer, and its state, each leaf of the type it had."""
    updates, new = optax.with_extra_args_support(outer).update(gradient, state, params)
    moved = jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)
    return moved, jax.tree.map(_as, new, state)


def _as(value: Array, like: Array) -> Array:
    return value.astype(like.dtype)
