"""What a run sends: expected by formula, or counted from the rounds drawn, without running it.

A protocol whose rounds use routes of a graph sends a replica for each worker that receives on a route
in use: in a swap one in each direction, and where a route is a whole matching, all of that. What two
workers on one device tell each other is not sent. A collective protocol (All-reduce SGD, EASGD) is
counted as a ring all-reduce, which sends `2 (W - 1) / W` times the parameters from every worker; no
all-reduce sends less.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float64

from gossip_jax.draws import Draw
from gossip_jax.graphs._graph import Graph
from gossip_jax.rounds import Round, in_contact, routes_in_use


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What was, or will be, sent. Traffic of consecutive parts of a run can be added."""

    exchanges: float  # between two workers (pairwise), or among all (collective)
    bytes_sent: Float64[np.ndarray, " W"]  # by each worker

    @property
    def busiest(self) -> float:
        """The bytes that the worker sends which sends most."""
        return float(self.bytes_sent.max())

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.exchanges + other.exchanges, self.bytes_sent + other.bytes_sent)


def silence(num_workers: int) -> Traffic:
    """The traffic of a protocol that does not communicate."""
    return Traffic(0, np.zeros(num_workers))


def counted_routes(
    rounds: Round, params: Any, wire_dtype: Any = None, num_devices: int | None = None
) -> Traffic:
    """The traffic of stacked rounds (or one), in which replicas go over the routes in use.

    A route in use is counted whole, also where a worker on it is away: its permutation sends all the
    same.

    Args:
      rounds: the rounds drawn.
      params: one worker's parameters, or their shapes and dtypes.
      wire_dtype: the type that they are sent in; their own, where None.
      num_devices: on how many devices the workers are, W / num_devices on each; where None, on
        one each.
    """
    in_use = np.asarray(routes_in_use(rounds))
    times = in_use.sum(axis=tuple(range(in_use.ndim - 1)), dtype=np.int64)
    exchanges = np.asarray(in_contact(rounds)).sum().item() / 2
    return _of_routes(rounds.graph, times, exchanges, params, wire_dtype, num_devices)


def expected_routes(
    draw: Draw,
    params: Any,
    num_updates: int,
    wire_dtype: Any = None,
    num_devices: int | None = None,
) -> Traffic:
    """The expected traffic of `counted_routes` over updates 1 to `num_updates`."""
    times = draw.route_probability() * (num_updates // draw.period)
    exchanges = draw.contact_probability().sum().item() / 2 * (num_updates // draw.period)
    return _of_routes(draw.graph, times, exchanges, params, wire_dtype, num_devices)


def counted_collective(rounds: Round, params: Any, period: int = 1) -> Traffic:
    """The traffic of a collective protocol over stacked rounds, of which it uses the steps.

    Args:
      rounds: the rounds, `step` [...].
      params: one worker's parameters, or their shapes and dtypes.
      period: τ; the protocol communicates at the updates that it divides.
    """
    exchanges = due(rounds, period).sum().item()
    return _collective(rounds.num_workers, exchanges, params)


def counted_gathering(rounds: Round, message: Any, period: int = 1) -> Traffic:
    """The traffic where each worker's message goes to all others, at the updates that τ divides.

    Args:
      rounds: the rounds, `step` [...].
      message: what one worker sends, or its shapes and dtypes.
      period: τ.
    """
    times, others = due(rounds, period).sum().item(), rounds.num_workers - 1
    each = float(times * others * num_bytes(message))
    return Traffic(float(times) if others else 0.0, np.full(rounds.num_workers, each))


def due(rounds: Round, period: int, phase: int = 0) -> Bool[np.ndarray, "..."]:
    """The rounds `phase` updates after one that τ divides: bool [...]."""
    steps = np.asarray(rounds.step) - phase
    return (steps % period == 0) & (steps > 0)


def at(rounds: Round, which: Bool[np.ndarray, "..."]) -> Round:
    """Those of stacked rounds, bool [...], as stacked rounds [n]."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], rounds)


def expected_collective(num_workers: int, params: Any, num_updates: int, period: int = 1) -> Traffic:
    """The traffic of a collective protocol over updates 1 to `num_updates`: no chance is in it."""
    return _collective(num_workers, num_updates // period, params)


def as_sent(params: Any, wire_dtype: Any = None) -> Any:
    """The shapes of a replica, in the type in which it is sent; in their own, where that is None."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(wire_dtype or leaf.dtype)), params
    )


def num_bytes(params: Any, wire_dtype: Any = None) -> int:
    """The size of one replica in bytes, as it is sent."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(as_sent(params, wire_dtype)))


def _of_routes(
    graph: Graph,
    times: np.ndarray,
    exchanges: float,
    params: Any,
    wire_dtype: Any,
    num_devices: int | None,
) -> Traffic:
    """From how often each route is used, [E]."""
    device = np.arange(graph.num_workers) * (num_devices or graph.num_workers) // graph.num_workers
    is_sent = device[graph.sources] != device  # [E, W], by receiver
    sent = [np.bincount(s, i, graph.num_workers) for s, i in zip(graph.sources, is_sent, strict=True)]
    replicas = times @ np.array(sent).reshape(graph.sources.shape)
    return Traffic(exchanges, replicas * float(num_bytes(params, wire_dtype)))


def _collective(num_workers: int, exchanges: int, params: Any) -> Traffic:
    if num_workers == 1:
        return silence(1)
    each = exchanges * 2 * (num_workers - 1) / num_workers * num_bytes(params)
    return Traffic(exchanges, np.full(num_workers, each))
