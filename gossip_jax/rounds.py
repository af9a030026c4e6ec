"""A round: who talks to whom at one update, and what follows from it."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Bool, Int32

from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.complete import complete


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Round:
    """Who talks to whom at one update: the same value on every worker.

    A protocol takes its round as `optimizer.update(..., round=round)`. Because the round is an
    argument, no message is needed to agree on peers and a run can be replayed from its rounds.
    Under `jax.vmap` pass it with `in_axes=None`, so that a silent round costs nothing.

    A round is of one of two kinds. Of *peers*: `Round(peer)` says who initiated contact with whom, and
    the routes in use follow from that. Of *routes*: `Round.of_routes(graph, routes)` says which routes
    of a graph are in use.

    Args:
      peer: integers [W]; `peer[i]` is the worker with whom worker i initiated contact, -1 for
        nobody. Stacked rounds, as `jax.lax.scan` takes them, have leading axes: [..., W].
      step: the update that the round belongs to, counted from 1: an integer, or [...] for
        stacked rounds.
      graph: the graph whose routes serve the contacts, `graphs.complete(W)` by default. Static.

    Raises:
      TypeError: `peer` or `step` does not hold integers.
      ValueError: `peer` has no axis, names a worker that does not exist or the worker itself, or one
        that the graph has no route from; the graph is of another W; or `step` does not have the leading
        shape of `peer`. Values are checked only where they are known, that is outside jit.

    Examples:
      >>> round = Round(peer=[1, -1, 0, -1])
      >>> in_contact(round).astype(int)
      Array([[0, 1, 1, 0],
             [1, 0, 0, 0],
             [1, 0, 0, 0],
             [0, 0, 0, 0]], dtype=int32)
    """

    peer: Int32[Array, "... W"]  # None in a round of routes
    step: Int32[Array, "..."]
    graph: Graph
    num_routes: range = dataclasses.field(repr=False)
    """How many routes may be in use, as far as is known when one compiles: static. range(1) is a
    silent round, range(E, E + 1) one with all routes of its graph in use. What may differ between
    stacked rounds is known for all of them together."""
    routes: Bool[Array, "... E"]  # None in one of peers
    away: Bool[Array, "... W"] | None  # None for nobody
    """In a round of routes, the workers that neither send nor receive."""

    def __init__(
        self,
        peer: ArrayLike | Sequence[Any],
        step: ArrayLike | Sequence[Any] = 1,
        graph: Graph | None = None,
    ):
        peer = as_int32("peer", peer)
        if peer.ndim == 0:
            raise ValueError("Round: peer must have one entry for each worker, [W]; got a scalar")
        graph = complete(peer.shape[-1]) if graph is None else graph
        if not isinstance(graph, Graph) or graph.num_workers != peer.shape[-1]:
            raise ValueError(
                f"Round: graph must be a Graph of the {peer.shape[-1]} workers of peer; got {graph!r}"
            )
        if not isinstance(peer, Tracer):
            _check_peers(np.asarray(peer), graph)
        self._set(peer=peer, step=_step_of("peer", peer, step), graph=graph, routes=None, away=None)
        # Each worker initiates one contact at most.
        self._set(num_routes=range(min(graph.num_workers, graph.num_routes) + 1))

    @classmethod
    def of_routes(
        cls, graph: Graph, routes: ArrayLike, step: ArrayLike = 1, num_routes: range | None = None
    ) -> "Round":
        """A round that says which routes of a graph are in use.

        Args:
          graph: the graph; static.
          routes: bool [E], or [..., E] for stacked rounds.
          step: the update that the round belongs to, counted from 1: an integer, or [...].
          num_routes: how many routes may be in use, where more than that is known; see the field.

        Raises:
          TypeError: `routes` does not hold booleans, or `step` no integers.
          ValueError: a shape is wrong.
        """
        routes = jnp.asarray(routes)
        if routes.dtype != bool:
            raise TypeError(f"Round: routes must hold booleans; got {routes.dtype}")
        if routes.shape[-1:] != (graph.num_routes,):
            raise ValueError(
                f"Round: {graph.name} has {graph.num_routes} routes, so routes must have shape "
                f"[..., {graph.num_routes}]; got {routes.shape}"
            )
        round = object.__new__(cls)
        known = range(graph.num_routes + 1) if num_routes is None else num_routes
        round._set(peer=None, step=_step_of("routes", routes, step), graph=graph)
        round._set(num_routes=known, routes=routes, away=None)
        return round

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def num_workers(self) -> int:
        """W, the number of workers that the round is about."""
        return self.graph.num_workers

    def replace(self, **fields: Any) -> "Round":
        """The same round but for some fields, which are taken as they are."""
        round = object.__new__(type(self))
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        round._set(**own | fields)
        return round

    def tree_flatten_with_keys(self):
        """For JAX: the leaves with their names, and what is static."""
        children = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in _LEAVES]
        return children, (self.graph, self.num_routes)

    @classmethod
    def tree_unflatten(cls, static, children):
        """For JAX: not through __init__, since it rebuilds pytrees around what is no array, too."""
        round = object.__new__(cls)
        round._set(graph=static[0], num_routes=static[1], **dict(zip(_LEAVES, children, strict=True)))
        return round


_LEAVES = ("peer", "step", "routes", "away")


def silence(num_workers: int, step: ArrayLike) -> Round:
    """A round without contact, known to be silent when the program is compiled: it then costs nothing.

    Args:
      num_workers: W.
      step: the update it belongs to, or [...], for stacked rounds.
    """
    graph = complete(num_workers)
    routes = jnp.zeros((*jnp.shape(step), graph.num_routes), bool)
    return Round.of_routes(graph, routes, step, range(1))


def all_routes(graph: Graph, step: ArrayLike) -> Round:
    """A round in which all routes of a graph are in use, which is known when the program is compiled.

    Args:
      graph: the graph.
      step: the update it belongs to, or [...], for stacked rounds.
    """
    every = graph.num_routes
    routes = jnp.ones((*jnp.shape(step), every), bool)
    return Round.of_routes(graph, routes, step, range(every, every + 1))


def _also_stacked(function: Callable[[Round], Array]) -> Callable[[Round], Array]:
    """The function of a round, for stacked rounds too: [...] becomes [..., ...]."""

    @functools.wraps(function)
    def of_rounds(round: Round) -> Array:
        return jax.vmap(of_rounds)(round) if jnp.ndim(round.step) else function(round)

    return of_rounds


@_also_stacked
def routes_in_use(round: Round) -> Bool[Array, "... E"]:
    """Which routes of its graph a round uses: bool [..., E].

    Where the routes are matchings, a contact of one pair has its whole matching in use.

    Args:
      round: a round, or stacked rounds.
    """
    if round.peer is None:
        return round.routes
    sources, carries = round.graph.sources, round.graph.carries
    workers = np.broadcast_to(np.arange(round.num_workers, dtype=np.int32), sources.shape)
    picked = jnp.broadcast_to(round.peer, sources.shape) == sources
    was_picked = round.peer[sources] == workers
    return ((picked | was_picked) & carries).any(axis=1)


@_also_stacked
def initiated(round: Round) -> Bool[Array, "... W W"]:
    """Who picked whom: `S[i, k]` is true where worker i initiated contact with worker k.

    In a round of routes, a worker's picks are those from whom it receives.

    Args:
      round: a round, or stacked rounds.

    Returns:
      bool [..., W, W], false on the diagonal.
    """
    workers, shape = np.arange(round.num_workers, dtype=np.int32), (round.num_workers,) * 2
    if round.peer is not None:
        picked = jnp.broadcast_to(round.peer[:, None], shape) == np.broadcast_to(workers, shape)
        return picked & ~np.eye(round.num_workers, dtype=bool)
    into = np.broadcast_to(workers, round.graph.sources.shape)
    used = jnp.broadcast_to(round.routes[:, None], into.shape) & round.graph.receives
    picked = jnp.zeros(shape, bool).at[into, round.graph.sources].max(used)
    if round.away is None:
        return picked
    there = ~round.away
    return picked & jnp.broadcast_to(there[:, None], shape) & jnp.broadcast_to(there, shape)


def in_contact(round: Round) -> Bool[Array, "... W W"]:
    """Who exchanges with whom, whoever of the two initiated: `S | S^T`.

    Args:
      round: a round, or stacked rounds.

    Returns:
      bool [..., W, W], symmetric, false on the diagonal. A pair that picked each other is one pair.
    """
    picked = initiated(round)
    return picked | picked.swapaxes(-1, -2)


def as_int32(name: str, value: ArrayLike | Sequence[Any]) -> Int32[Array, "..."]:
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


def _step_of(name: str, values: Array, step: ArrayLike | Sequence[Any]) -> Array:
    """The step of each round, of the leading shape of its values."""
    step, shape = as_int32("step", step), values.shape[:-1]
    if step.ndim == 0:
        step = jnp.broadcast_to(step, shape)
    if step.shape != shape:
        raise ValueError(
            f"Round: step must be a scalar or have the leading shape of {name}, {shape}; "
            f"got {step.shape}"
        )
    return step


def _check_peers(peer: np.ndarray, graph: Graph) -> None:
    num_workers = peer.shape[-1]
    workers = np.arange(num_workers)
    wrong = (peer < -1) | (peer >= num_workers) | (peer == workers)
    if wrong.any():
        *_, worker = where = tuple(map(operator.itemgetter(0), np.nonzero(wrong)))
        raise ValueError(
            f"Round: peer[{worker}] is {peer[where]}; allowed are -1 (nobody) and the other "
            f"workers, 0 to {num_workers - 1} without {worker}"
        )
    has_route = np.eye(num_workers, dtype=bool)
    has_route[np.broadcast_to(workers, graph.sources.shape), graph.sources] = True
    missing = (peer >= 0) & ~has_route[workers, np.maximum(peer, 0)]
    if missing.any():
        *_, worker = where = tuple(map(operator.itemgetter(0), np.nonzero(missing)))
        raise ValueError(
            f"Round: peer[{worker}] is {peer[where]}, but {graph.name} has no route from there"
        )
