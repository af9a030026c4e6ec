"""What the protocols share in which workers push a part of what they hold, with its weight.

A worker holds z with the weight w, and so the mass w z. Of both it keeps a share, and sends the rest.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gossip_jax import checks, exchange, traffic
from gossip_jax.mixing import by_route
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Late, Protocol
from gossip_jax.rounds import Round, initiated
from gossip_jax.traffic import Traffic


class PushState(NamedTuple):
    """The weight of what a worker holds: it starts as 1, and the sum over workers stays W."""

    weight: Array  # float scalar


Scale = Callable[[Any, Array], Any]
"""(updates, weight) -> by how much z moves."""


def pushing(owner: str, scale: Scale, axis_name: str, wire_dtype: Any) -> Protocol:
    """A protocol that applies the local update to z, and pushes.

    Args:
      owner: the protocol's public name, for its error messages.
      scale: what the local update is to z, at a worker's weight.
      axis_name: the worker axis.
      wire_dtype: the type that replicas are sent in; their own, where None. Weights keep theirs.
    """
    wire_dtype = checks.wire_dtype(owner, wire_dtype)

    def init(params: Any) -> PushState:
        del params
        return PushState(jnp.ones((), float))

    def update(updates: Any, state: PushState, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(owner, params, round, axis_name)
        updates = scale(updates, state.weight)
        if round.num_workers == 1 or max(round.num_routes) == 0:
            return updates, state
        kept, shares = _shares(round, axis_name)
        masses = shares * exchange.heard(state.weight, round, axis_name)
        weight = kept * state.weight + masses.sum()
        point = jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)
        # As moves towards others: replicas that agree stay as they are, to the bit.
        updates = exchange.mix(updates, point, round, masses / weight, axis_name, wire_dtype)
        return updates, PushState(weight)

    def send(params: Any, state: PushState, round: Round) -> tuple[Any, Array]:
        _, shares = _shares(round, axis_name)
        masses = shares * exchange.heard(state.weight, round, axis_name)
        return exchange.brought(params, round, masses, axis_name, wire_dtype), masses.sum()

    def take(
        updates: Any, state: PushState, params: Any, round: Round, mass: Any, weight: Array
    ) -> tuple[Any, PushState]:
        kept, _ = _shares(round, axis_name)
        total = kept * state.weight + weight

        def move(u: Array, p: Array, arrived: Array) -> Array:
            towards = (arrived - weight.astype(p.dtype) * p) / total.astype(p.dtype)
            return u + towards.astype(u.dtype)

        return jax.tree.map(move, scale(updates, total), params, mass), PushState(total)

    return Protocol(init, update, "after", axis_name, Late(send, take))


def _shares(round: Round, axis_name: str) -> tuple[Array, Array]:
    """What a worker keeps of its mass, a scalar; and the share of its source's that it is sent on each
    route, [E]. Who sends to d others keeps 1 / (1 + d), and each of them is sent as much.
    """
    is_sent = initiated(round) if round.peer is None else initiated(round).T  # [receiver, sender]
    share = 1 / (1 + is_sent.sum(axis=0)).astype(float)
    to_each = jnp.where(is_sent, jnp.broadcast_to(share, is_sent.shape), 0)
    of_route = exchange.of_worker(by_route(round, to_each), axis_name)
    return exchange.of_worker(share[None], axis_name)[0], of_route


def counted(rounds: Round, params: Any, wire_dtype: Any) -> Traffic:
    """What is sent: replicas with their weights, over the routes in use."""
    weight = jnp.zeros((), float)
    return traffic.counted_routes(rounds, (traffic.as_sent(params, wire_dtype), weight))
