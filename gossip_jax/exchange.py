"""What passes between workers: the only file that names a collective between peers.

Every function here runs under a worker axis bound by `jax.vmap`, `jax.pmap`, `jax.shard_map` or
`gossip_jax.place`, and sees one worker's values.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from gossip_jax import axis, wire
from gossip_jax.axis import Axis, AxisName
from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.routing import Hop, way
from gossip_jax.rounds import Round, routes_in_use

Combine = Callable[[Array, Array, Array, ArrayLike], Array]
"""(total, mine, theirs, route) -> total, of one leaf each"""

_UNROLLED = 4  # routes that are always in use and within one device, up to which each is compiled


def receive(
    tree: Any,
    round: Round,
    axis_name: AxisName,
    combine: Combine,
    into: Any,
    wire_dtype: np.dtype | None = None,
) -> Any:
    """Hands a worker what its sources sent, route by route and leaf by leaf.

    For every route that the round uses, in the order of the graph, each leaf of `into` becomes
    `combine(leaf, mine, theirs, route)`: `mine` is this worker's leaf of `tree` as it is sent, `theirs`
    that of its source on the route. Who is its own source is handed its own. What decides on a route
    comes from the round alone: workers that disagree on a conditional around a collective wait for each
    other for ever.

    `lax.ppermute` needs a permutation that is known when the program is compiled: so each route of the
    graph is compiled, once for every message, as a branch of a conditional. A tree is sent in a few
    parts, and what has arrived of one is combined before the next is sent. Where it is known that all
    routes are in use there is no conditional, and XLA overlaps them with what else is to be done.
    Within a device a source is looked up by its index.

    Args:
      tree: what this worker sends, a pytree of arrays of floating point.
      round: the routes in use.
      axis_name: the worker axis.
      combine: what to do with what arrives.
      into: a pytree of the same structure.
      wire_dtype: the floating-point type that leaves are sent in; their own, where None.

    Returns:
      What has become of `into`.
    """
    numbers = round.num_routes
    if round.num_workers == 1 or max(numbers) == 0:
        return into
    leaves, structure = jax.tree.flatten(tree)
    mine = varying([wire.as_sent(leaf, wire_dtype) for leaf in leaves], axis_name)
    link = _Link(round.graph, axis.bound(axis_name), wire_dtype, bool(_varying_axes(mine)))
    in_use = routes_in_use(round)

    def talk(totals: list[Array]) -> list[Array]:
        done = list(totals)
        for part in wire.chunks(leaves):
            messages, unpack = wire.pack([mine[i] for i in part], link.small)

            def combined(totals: list[Array], route: ArrayLike) -> list[Array]:
                theirs = unpack(link.bring(messages, route))  # noqa: B023
                of_part = zip(totals, part, theirs, strict=True)  # noqa: B023
                return [combine(total, mine[i], leaf, route) for total, i, leaf in of_part]

            of_part = _over_routes(combined, [totals[i] for i in part], in_use, numbers, link)
            for i, total in zip(part, of_part, strict=True):
                done[i] = total
        return done

    totals = varying(structure.flatten_up_to(into), axis_name)
    totals = _when(in_use.any(), talk, totals) if 0 in numbers else talk(totals)
    return structure.unflatten(totals)


def _over_routes(
    combined: Callable[[list[Array], ArrayLike], list[Array]],
    totals: list[Array],
    in_use: Array,
    numbers: range,
    link: "_Link",
) -> list[Array]:
    """`combined(totals, route)` for one route in use after the other, of which there are some."""
    num_routes = len(in_use)
    if min(number for number in numbers if number) == num_routes:
        if link.is_sent or num_routes <= _UNROLLED:
            return functools.reduce(combined, range(num_routes), totals)
        return lax.fori_loop(0, num_routes, lambda route, totals: combined(totals, route), totals)
    if max(numbers) == 1:
        return combined(totals, in_use.argmax())
    in_order, count = jnp.argsort(~in_use, stable=True), in_use.sum()

    # As many turns as routes there may be, since only such a loop can be differentiated in reverse.
    def turn(totals: list[Array], number: Array) -> tuple[list[Array], None]:
        return _when(number < count, lambda totals: combined(totals, in_order[number]), totals), None

    return lax.scan(turn, totals, jnp.arange(max(numbers)))[0]


class _Link:
    """What brings messages from their sources, over the routes of one graph."""

    def __init__(self, graph: Graph, workers: Axis, wire_dtype: np.dtype | None, is_checked: bool):
        self._graph, self._workers, self._wire_dtype = graph, workers, wire_dtype
        self.is_sent = workers.devices is not None
        """Whether anything is: within a device, messages are rows of one array."""
        is_cpu = jax.default_backend() == "cpu"
        # Under `jax.shard_map` with check_vma=True, JAX cannot have some of the devices add up.
        self._is_over_gloo = self.is_sent and is_cpu and _has_several_processes() and not is_checked
        # Packing leaves that are divided over further axes would gather them first.
        self.small = wire.SMALL if self.is_sent and not _has_further_axes() else 0
        self._replica = None if workers.replicas is None else lax.axis_index(workers.replicas)

    def bring(self, messages: list[Array], route: ArrayLike) -> list[Array]:
        """What each worker's source on a route sent."""
        if not self.is_sent:
            source = jnp.asarray(self._graph.sources)[route, self._workers.worker()]
            return [self._stacked(message)[source] for message in messages]
        if isinstance(route, int):
            return self._sent(messages, route)
        if self._graph.num_routes == 1:
            return self._sent(messages, 0)
        routes = [functools.partial(self._sent, route=r) for r in range(self._graph.num_routes)]
        return lax.switch(route, routes, messages)

    def _sent(self, messages: list[Array], route: int) -> list[Array]:
        local, hops = way(self._graph, route, self._workers.num_devices)
        with jax.named_scope(_scope(self._graph, route)):
            return [self._over(message, local, hops) for message in messages]

    def _over(self, message: Array, local: np.ndarray, hops: Sequence[Hop]) -> Array:
        """One message, of every worker, over the hops of a route."""
        device = lax.axis_index(self._workers.devices)
        if self._replica is None:
            (hop,) = hops
            arrived = self._hopped(message, hop)
            is_there = jnp.asarray(hop.taken >= 0)[device]
            return arrived if (hop.taken >= 0).all() else jnp.where(is_there, arrived, message)
        stack = self._stacked(message)
        found = stack[jnp.asarray(local)[self._workers.worker()]]
        for hop in hops:
            arrived = self._hopped(stack[jnp.asarray(hop.sent)[device]], hop)
            found = jnp.where(jnp.asarray(hop.taken)[device] == self._replica, arrived, found)
        return found

    def _stacked(self, message: Array) -> Array:
        """The messages of all workers on this device, [R, ...]."""
        return lax.all_gather(message, self._workers.replicas)

    def _hopped(self, message: Array, hop: Hop) -> Array:
        send = functools.partial(_permuted, devices=self._workers.devices, permutation=hop.permutation)
        if not self._is_over_gloo:
            return wire.carried(message, self._wire_dtype, send, as_integers=False)
        # XLA has gloo send a permutation in one direction after the other. A sum over each pair goes in
        # both at once, in as many bytes; integers wrap around, so that the difference is exact.
        partner = dict(hop.permutation)
        if any(partner.get(partner[one]) != one for one in partner):
            return wire.carried(message, self._wire_dtype, send, as_integers=False)
        alone = set(range(self._workers.num_devices)) - partner.keys()
        groups = sorted([[a, b] for a, b in hop.permutation if a < b] + [[one] for one in alone])

        def swapped(array: Array) -> Array:
            if not jnp.issubdtype(array.dtype, jnp.integer):  # a derivative
                return send(array)
            return lax.psum(array, self._workers.devices, axis_index_groups=groups) - array

        return wire.carried(message, self._wire_dtype, swapped, as_integers=True)


def _permuted(message: Array, devices: Any, permutation: Sequence[tuple[int, int]]) -> Array:
    return lax.ppermute(message, devices, permutation)


def _scope(graph: Graph, route: int) -> str:
    """What the operations of a route are called in a trace."""
    pairs = graph.pairs(route)
    swaps = [f"{one}-{other}" for one, other in pairs if one < other]
    is_short = len(swaps) <= 4 and len(pairs) == 2 * len(swaps)
    return "exchange_" + ("_".join(swaps) if is_short else f"route-{route}")


def mix(
    updates: Any,
    params: Any,
    round: Round,
    weights: ArrayLike,
    axis_name: AxisName,
    wire_dtype: np.dtype | None = None,
) -> Any:
    """Moves each worker towards others: adds `Σ_e weights[e, i] (θ_k - θ_i)` to worker i's updates,
    where k is its source on route e, over the routes in use.

    Args:
      updates: one worker's updates, a pytree of arrays.
      params: its parameters θ_i, a pytree of the same structure.
      round: the routes in use.
      weights: float [E, W]; where one is zero, what arrives is not looked at, be it NaN.
      axis_name: the worker axis.
      wire_dtype: the floating-point type that replicas are sent in; their own, where None. All then go
        by what was sent, so that the two of a swap still move by opposite amounts.

    Returns:
      The new updates of this worker; what it was given, where it talks to nobody.
    """
    if round.num_workers == 1 or max(round.num_routes) == 0:
        return updates
    own = jnp.asarray(weights)[:, axis.worker_index(axis_name)]

    def move(total: Array, mine: Array, theirs: Array, route: ArrayLike) -> Array:
        step = own[route].astype(mine.dtype) * (theirs - mine)
        # Selected, not multiplied by a weight of zero: 0 * NaN is NaN.
        return jnp.where(own[route] != 0, total + step.astype(total.dtype), total)

    return receive(params, round, axis_name, move, updates, wire_dtype)


def mean(tree: Any, axis_name: AxisName) -> Any:
    """The mean over workers of every leaf, on every worker: one all-reduce.

    Raises:
      ValueError: there is no such axis; or, under `jax.shard_map`, the leaf is known to be the same on
        every worker.
    """
    workers = axis.bound(axis_name)
    for leaf in jax.tree.leaves(tree):
        # Under check_vma=True the gradient of parameters that all workers share is summed over them by
        # JAX already, and a mean over workers would leave it W times too large.
        if _varying_axes(workers.worker()) - _varying_axes(leaf):
            raise ValueError(
                f"what is to be averaged over {axis_name!r} is the same on every worker already: pass "
                f"each worker its own parameters (jax.shard_map with in_specs=P({axis_name!r}))"
            )
    if workers.replicas is not None:
        tree = jax.tree.map(functools.partial(_mean_of_rows, axis_name=workers.replicas), tree)
    return tree if workers.devices is None else lax.pmean(tree, workers.devices)


def when(predicate: Array, change: Callable[[Any], Any], tree: Any, axis_name: AxisName) -> Any:
    """`change(tree)` where the predicate, the same on every worker, holds; else the tree untouched."""
    return _when(predicate, change, varying(tree, axis_name))


def _when(predicate: Array, change: Callable[[Any], Any], tree: Any) -> Any:
    return lax.cond(predicate, change, lambda tree: tree, tree)


def varying(tree: Any, axis_name: AxisName) -> Any:
    """The same values, of a type that may differ between workers.

    `jax.shard_map` (check_vma=True) asks both branches of a conditional for equal types, and what
    comes out of an exchange may differ between workers. XLA drops the select.
    """
    always = axis.worker_index(axis_name) >= 0
    return jax.tree.map(lambda leaf: jnp.where(always, leaf, leaf), tree)


def _varying_axes(tree: Any) -> frozenset[str]:
    """The axes over which shard_map says that a value may differ; none without check_vma."""
    kinds = [jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]
    kinds = [getattr(kind, "manual_axis_type", kind) for kind in kinds]
    axes = [getattr(kind, "varying", None) or getattr(kind, "vma", None) or () for kind in kinds]
    return frozenset(name for of in axes for name in of)


def _has_several_processes() -> bool:
    """Whether devices of other processes may take part."""
    return jax.process_count() > 1


def _has_further_axes() -> bool:
    """Whether what a worker holds may be divided over axes of its own, as XLA sees fit."""
    mesh = jax.sharding.get_abstract_mesh()
    return any(mesh.shape[name] > 1 for name in set(mesh.axis_names) - set(mesh.manual_axes))


def _mean_of_rows(leaf: Array, axis_name: str) -> Array:
    """As `lax.pmean`, within a device.

    XLA reduces the first axis of an array many times slower on CPU than it adds its rows.
    """
    rows = lax.all_gather(leaf, axis_name)
    return functools.reduce(jnp.add, [rows[i] for i in range(len(rows))]) / len(rows)
