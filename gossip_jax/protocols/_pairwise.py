"""What the protocols share in which workers move towards those that they hear from."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import optax
from jax import Array

from gossip_jax import checks, exchange
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Late, Protocol
from gossip_jax.rounds import Round

Weights = Callable[[Round], tuple[Round, Array]]
"""From a round to the routes that are needed, and float [E, W]: what each worker gives to what
arrives."""


def mixing(
    owner: str,
    weights: Weights,
    axis_name: str,
    wire_dtype: Any = None,
    order: Literal["awc", "atc"] = "awc",
) -> Protocol:
    """A protocol that adds `Σ_k w_ik (θ_k - θ_i)` to the update of worker i.

    Args:
      owner: the protocol's public name, for its error messages.
      weights: w_ik, from the round.
      axis_name: the worker axis.
      wire_dtype: the type that replicas are sent in; their own, where None.
      order: "awc" takes the θ from before the local update, "atc" from after it.

    Raises:
      ValueError: `wire_dtype` is no type that replicas can be sent in.
    """
    wire_dtype = checks.wire_dtype(owner, wire_dtype)

    def send(params: Any, state: Any, round: Round) -> tuple[Any, Array]:
        needed, of_all = weights(round)
        own = exchange.of_worker(of_all, axis_name)
        return exchange.brought(params, needed, own, axis_name, wire_dtype), own.sum()

    def take(updates: Any, state: Any, params: Any, round: Round, total: Any, weight: Array):
        def move(u: Array, p: Array, arrived: Array) -> Array:
            return u + (arrived - weight.astype(p.dtype) * p).astype(u.dtype)

        return jax.tree.map(move, updates, params, total), state

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(owner, params, round, axis_name)
        if max(round.num_routes) == 0:
            return updates, state
        needed, own = weights(round)
        if order == "atc":
            params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)
        return exchange.mix(updates, params, needed, own, axis_name, wire_dtype), state

    late = Late(send, take) if order == "awc" else None
    return Protocol(lambda params: optax.EmptyState(), update, "after", axis_name, late)
