"""What passes between workers: the only file that names a collective between peers.

Every function here runs under a worker axis bound by `jax.vmap`, `jax.pmap`, `jax.shard_map` or
`gossip_jax.place`, and sees one worker's values.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from gossip_jax import axis, wire
from gossip_jax.axis import Axis, AxisName
from gossip_jax.graphs import routing
from gossip_jax.graphs._graph import Graph
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
    leaves = varying(leaves, axis_name)
    link = _Link(round.graph, axis.bound(axis_name), wire_dtype, bool(_varying_axes(leaves)))
    in_use = routes_in_use(round)

    parts = wire.chunks(leaves, link.small) if link.is_sent else [list(range(len(leaves)))]

    def of_part(part: list[int], totals: list[Array], route: ArrayLike) -> list[Array]:
        """Some leaves of what has been combined so far, with what came over one more route."""
        mine, theirs = _exchanged([leaves[i] for i in part], route, link)
        return [combine(*of_leaf, route) for of_leaf in zip(totals, mine, theirs, strict=True)]

    def talk(totals: list[Array]) -> list[Array]:
        grouped = [[totals[i] for i in part] for part in parts]
        steps = [functools.partial(of_part, part) for part in parts]
        done = _over_routes(steps, grouped, in_use, numbers, link)
        of_leaf = dict(zip(itertools.chain(*parts), itertools.chain(*done), strict=True))
        return [of_leaf[i] for i in range(len(leaves))]

    totals = varying(structure.flatten_up_to(into), axis_name)
    totals = _when(in_use.any(), talk, totals) if 0 in numbers else talk(totals)
    return structure.unflatten(totals)


def _exchanged(leaves: list[Array], route: ArrayLike, link: "_Link") -> tuple[list[Array], list[Array]]:
    """Leaves as this worker sends them, and those of its source on a route."""
    messages, unpack = wire.pack([wire.as_sent(leaf, link.wire_dtype) for leaf in leaves], link.small)
    theirs = unpack(link.bring(messages, route))
    # Rounded once more, in the pass that combines: to keep what was sent would take more memory.
    own = leaves if link.wire_dtype is None else lax.optimization_barrier(leaves)
    return [wire.as_sent(leaf, link.wire_dtype) for leaf in own], theirs


Step = Callable[[list[Array], ArrayLike], list[Array]]
"""(totals, route) -> totals, of one part of the leaves"""


def _over_routes(
    steps: Sequence[Step],
    parts: list[list[Array]],
    in_use: Array,
    numbers: range,
    link: "_Link",
) -> list[list[Array]]:
    """Takes each part's step for one route in use after the other, of which there are some."""

    def over(parts: list[list[Array]], route: ArrayLike) -> list[list[Array]]:
        return [step(totals, route) for step, totals in zip(steps, parts, strict=True)]

    num_routes = len(in_use)
    if min(number for number in numbers if number) == num_routes:
        if link.is_sent or num_routes <= _UNROLLED:
            return functools.reduce(over, range(num_routes), parts)
        return lax.fori_loop(0, num_routes, lambda route, parts: over(parts, route), parts)
    # A look-up within a device stays in a conditional: fused with the update, it would copy parameters.
    if max(numbers) == 1 and link.is_sent:
        return over(parts, in_use.argmax())
    in_order, count = jnp.argsort(~in_use, stable=True), in_use.sum()

    # As many turns as routes there may be: only such a loop can be differentiated in reverse. Each
    # part has a conditional to itself, so that what arrives of it is combined before the next is sent.
    def turn(parts: list[list[Array]], number: Array) -> tuple[list[list[Array]], None]:
        route = in_order[number]
        taken = [functools.partial(lambda step, totals: step(totals, route), step) for step in steps]
        both = zip(taken, parts, strict=True)
        return [_when(number < count, step, totals) for step, totals in both], None

    return lax.scan(turn, parts, jnp.arange(max(numbers)))[0]


class _Link:
    """What brings messages from their sources, over the routes of one graph."""

    def __init__(self, graph: Graph, workers: Axis, wire_dtype: np.dtype | None, is_checked: bool):
        self.wire_dtype = wire_dtype
        self._graph, self._workers, self._worker = graph, workers, workers.worker()
        self.is_sent = workers.devices is not None
        """Whether anything is: within a device, messages are rows of one array."""
        is_cpu = jax.default_backend() == "cpu"
        # Under `jax.shard_map` with check_vma=True, JAX cannot have some of the devices add up.
        self._is_over_gloo = self.is_sent and is_cpu and _has_several_processes() and not is_checked
        # Packing leaves that are divided over further axes would gather them first.
        self.small = wire.SMALL if self.is_sent and not _has_further_axes() else 0

    def bring(self, messages: list[Array], route: ArrayLike) -> list[Array]:
        """What each worker's source on a route sent."""
        if not self.is_sent:
            source = jnp.asarray(self._graph.sources)[route, self._worker]
            return [self._of_device(message)[source] for message in messages]
        ways = routing.ways(self._graph, self._workers.num_devices)
        device = lax.axis_index(self._workers.devices)
        replica = self._worker - device * self._workers.num_replicas
        # What goes from device to device knows of devices only: all their replicas, [R, ...].
        held = [self._of_device(message) for message in messages]
        arrived = self._brought(held, route)
        found = messages
        if self._workers.num_replicas > 1:
            local = jnp.asarray(ways.local)[route, self._worker]
            found = [stack[local] for stack in held]
        elif (ways.taken[route if isinstance(route, int) else slice(None)] == 0).all():
            return arrived[0]  # everybody receives
        for hop, of_hop in enumerate(arrived):
            is_mine = jnp.asarray(ways.taken)[route, hop, device] == replica
            found = [jnp.where(is_mine, *pair) for pair in zip(of_hop, found, strict=True)]
        return found

    def _of_device(self, message: Array) -> Array:
        """The messages of all workers on this device, [R, ...]."""
        if self._workers.replicas is None:
            return message[None]
        return lax.all_gather(message, self._workers.replicas)

    def _brought(self, held: list[Array], route: ArrayLike) -> list[list[Array]]:
        """What arrives at this device over a route: for each of its hops, each message."""
        if isinstance(route, int):
            return _linear(self._coded, functools.partial(self._over_route, route=route))(held)
        return _linear(self._coded, self._over_route)(held, route)

    def _coded(self, send: Callable[..., list[list[Array]]], held: list[Array], *route: Array) -> Any:
        """Sends messages as they go over the wire."""
        bits = [wire.encoded(stack, self.wire_dtype, self._is_over_gloo) for stack in held]
        types = [stack.dtype for stack in held]
        return [
            [wire.decoded(m, self.wire_dtype, own) for m, own in zip(of_hop, types, strict=True)]
            for of_hop in send(bits, *route)
        ]

    def _over_route(self, held: list[Array], route: ArrayLike) -> list[list[Array]]:
        if isinstance(route, int):
            return self._over_hops(held, route)
        if self._graph.num_routes == 1:
            return self._over_hops(held, 0)
        routes = [functools.partial(self._over_hops, route=r) for r in range(self._graph.num_routes)]
        return lax.switch(route, routes, held)

    def _over_hops(self, held: list[Array], route: int) -> list[list[Array]]:
        ways = routing.ways(self._graph, self._workers.num_devices)
        with jax.named_scope(_scope(self._graph, route)):
            return [
                [self._hopped(self._chosen(stack, sent), permutation) for stack in held]
                for sent, permutation in zip(ways.sent[route], ways.permutations[route], strict=True)
            ]

    def _chosen(self, stack: Array, of_device: np.ndarray) -> Array:
        """The replica that this device sends, of all of its own."""
        if self._workers.num_replicas == 1:
            return stack[0]
        return stack[jnp.asarray(of_device)[lax.axis_index(self._workers.devices)]]

    def _hopped(self, message: Array, permutation: Sequence[tuple[int, int]]) -> Array:
        if not permutation:  # another route takes more hops
            return jnp.zeros_like(message)
        partner = dict(permutation)
        is_swap = all(partner.get(partner[one]) == one for one in partner)
        if not (self._is_over_gloo and is_swap and jnp.issubdtype(message.dtype, jnp.integer)):
            return lax.ppermute(message, self._workers.devices, permutation)
        # XLA has gloo send a permutation in one direction after the other. A sum over each pair goes in
        # both at once, in as many bytes; integers wrap around, so that the difference is exact.
        alone = set(range(self._workers.num_devices)) - partner.keys()
        groups = sorted([[a, b] for a, b in permutation if a < b] + [[one] for one in alone])
        return lax.psum(message, self._workers.devices, axis_index_groups=groups) - message


def _linear(coded: Callable[..., Any], send: Callable[..., Any]) -> Callable[..., Any]:
    """`coded(send, messages, *route)`, whose derivative sends derivatives: bits have none."""

    @jax.custom_jvp
    def sent(messages: list[Array], *route: Array) -> Any:
        return coded(send, messages, *route)

    @sent.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return sent(*primals), send(tangents[0], *primals[1:])

    return sent


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
      weights: float [E, W], or this worker's own, [E]; where one is zero, what arrives is not looked
        at, be it NaN.
      axis_name: the worker axis.
      wire_dtype: the floating-point type that replicas are sent in; their own, where None. All then go
        by what was sent, so that the two of a swap still move by opposite amounts.

    Returns:
      The new updates of this worker; what it was given, where it talks to nobody.
    """
    if round.num_workers == 1 or max(round.num_routes) == 0:
        return updates
    own = of_worker(weights, axis_name)

    def move(total: Array, mine: Array, theirs: Array, route: ArrayLike) -> Array:
        step = own[route].astype(mine.dtype) * (theirs - mine)
        # Selected, not multiplied by a weight of zero: 0 * NaN is NaN.
        return jnp.where(own[route] != 0, total + step.astype(total.dtype), total)

    return receive(params, round, axis_name, move, updates, wire_dtype)


def of_worker(values: ArrayLike, axis_name: AxisName) -> Array:
    """This worker's own of the values of all, [..., W]; its own, [E], where it was given them."""
    values = jnp.asarray(values)
    return values[..., axis.worker_index(axis_name)] if values.ndim == 2 else values


def brought(
    tree: Any, round: Round, weights: Array, axis_name: AxisName, wire_dtype: Any = None
) -> Any:
    """`Σ_e weights[e] θ_k`, of what this worker's sources k sent over the routes in use.

    Args:
      tree: what this worker sends, a pytree of arrays of floating point.
      round: the routes in use.
      weights: float [E], this worker's own; where one is zero, what arrives is not looked at.
      axis_name: the worker axis.
      wire_dtype: the floating-point type that leaves are sent in; their own, where None.
    """

    def add(total: Array, mine: Array, theirs: Array, route: ArrayLike) -> Array:
        del mine
        return jnp.where(
            weights[route] != 0, total + weights[route].astype(total.dtype) * theirs, total
        )

    return receive(tree, round, axis_name, add, jax.tree.map(jnp.zeros_like, tree), wire_dtype)


def heard(value: Array, round: Round, axis_name: AxisName) -> Array:
    """What this worker's source on each route sent of a scalar, [E]; 0 where a route is not in use."""

    def put(total: Array, mine: Array, theirs: Array, route: ArrayLike) -> Array:
        del mine
        return total.at[route].set(theirs)

    return receive(value, round, axis_name, put, jnp.zeros(round.graph.num_routes, value.dtype))


def gathered(tree: Any, axis_name: AxisName) -> Any:
    """The values of all workers, on each of them: leaves [W, ...]."""
    workers = axis.bound(axis_name)

    def of_all(leaf: Array) -> Array:
        stack = leaf[None] if workers.replicas is None else lax.all_gather(leaf, workers.replicas)
        if workers.devices is None:
            return stack
        return lax.all_gather(stack, workers.devices, tiled=True)

    return jax.tree.map(of_all, varying(tree, axis_name))


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
