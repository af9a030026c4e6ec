"""A graph: over which routes workers can send, and what weight each gives to what it receives."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int


class Graph:
    """Who can send to whom: W workers, and E routes, each a permutation of them. Static and hashable.

    A route is what one round trip of `jax.lax.ppermute` does: every worker receives from its source on
    that route. Who is its own source neither sends nor receives. A program holds one branch for each
    route of its graph and nothing else, so E is what a graph costs to compile.

    Graphs of the usual families come from functions beside this one: `complete`, `ring`, `chain`,
    `star`, `torus`, `hypercube`, `exponential`, `base` and `from_edges`.

    Args:
      name: what the graph is called, such as "ring(8)".
      sources: integers [E, W]; `sources[e, i]` is the worker from which worker i receives on route e.
        Each row is a permutation of the workers.
      weights: floats [E, W]: the weight that worker i gives to what it receives on route e, where all
        routes are in use at once. It keeps the rest, 1 less their sum, for what is its own.
      turns: integers [E], not falling, from 0 on without a gap: the routes that are in use together
        where they follow each other. By default each route has a turn of its own.
      turn_weights: floats [E, W]: the weights where only the routes of one turn are in use. By default
        ½, or `weights` where there is a single turn.

    Raises:
      ValueError: a row of `sources` is no permutation, or an argument is of a wrong shape.
    """

    def __init__(
        self,
        name: str,
        sources: Any,
        weights: Any,
        turns: Any = None,
        turn_weights: Any = None,
    ):
        """Checks the routes, and keeps them read-only."""
        self.name = name
        # Routes and turns in 32 bits, as rounds are, so that the two meet under jax_enable_x64, too.
        self.sources = read_only(np.array(sources, np.int32))
        if self.sources.ndim != 2 or self.sources.shape[1] == 0:
            raise ValueError(
                f"Graph: sources must have shape [E, W], with W of 1 or more; got {self.sources.shape}"
            )
        num_routes, num_workers = self.sources.shape
        is_permutation = (np.sort(self.sources, axis=1) == np.arange(num_workers)).all(axis=1)
        if not is_permutation.all():
            wrong = int(np.argmin(is_permutation))
            raise ValueError(
                f"Graph: each row of sources must be a permutation of the {num_workers} workers; row "
                f"{wrong} is {self.sources[wrong].tolist()}"
            )
        self.turns = read_only(np.array(range(num_routes) if turns is None else turns, np.int32))
        steps = np.diff(np.concatenate([[-1], self.turns.ravel(), [self.turns.max(initial=-1) + 1]]))
        if self.turns.shape != (num_routes,) or not np.isin(steps, (0, 1)).all() or steps[0] != 1:
            raise ValueError(
                f"Graph: turns must be {num_routes} numbers that go up from 0, one for each route; "
                f"got {np.array(turns).tolist()}"
            )
        self.weights = self._checked("weights", weights)
        if turn_weights is None:
            turn_weights = weights if self.num_turns == 1 else np.full(self.sources.shape, 0.5)
        self.turn_weights = self._checked("turn_weights", turn_weights)
        content = name, *(array.tobytes() for array in self._arrays)
        self._hash = hash(content)

    def _checked(self, name: str, weights: Any) -> np.ndarray:
        """The weights, 0 where nothing is received."""
        array = np.array(weights, np.float64)
        if array.shape != self.sources.shape or not np.isfinite(array).all():
            raise ValueError(
                f"Graph: {name} must be finite, of shape [E, W] = {self.sources.shape}; got {array}"
            )
        return read_only(np.where(self.sources == np.arange(self.num_workers), 0.0, array))

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.sources, self.turns, self.weights, self.turn_weights

    @property
    def num_workers(self) -> int:
        """W."""
        return self.sources.shape[1]

    @property
    def num_routes(self) -> int:
        """E."""
        return self.sources.shape[0]

    @property
    def num_turns(self) -> int:
        """In how many turns all routes are used, one turn after the other."""
        return int(self.turns.max(initial=-1)) + 1

    @functools.cached_property
    def receives(self) -> Bool[np.ndarray, "E W"]:
        """Which worker receives from another one: bool [E, W]."""
        return read_only(self.sources != np.arange(self.num_workers))

    @functools.cached_property
    def carries(self) -> Bool[np.ndarray, "E W"]:
        """Which worker receives from another one on this route first, of those that do: bool [E, W]."""
        carried = np.zeros((self.num_workers, self.num_workers), bool)
        found = np.zeros(self.sources.shape, bool)
        workers = np.arange(self.num_workers)
        for route, sources in enumerate(self.sources):
            found[route] = self.receives[route] & ~carried[workers, sources]
            carried[workers, sources] = True
        return read_only(found)

    @functools.cached_property
    def inverse(self) -> Int[np.ndarray, " E"] | None:
        """Int [E]: the route that sends the other way; None where some route has none.

        A graph with it is undirected, route by route: who can send to a worker can hear from it.
        """
        number = {row.tobytes(): index for index, row in enumerate(self.sources)}
        found = [number.get(np.argsort(row).astype(row.dtype).tobytes()) for row in self.sources]
        if any(index is None for index in found):
            return None
        return read_only(np.array(found, np.int64))

    def turn(self, number: int) -> "Graph":
        """The routes of one turn as a graph by itself, with the weights of that turn."""
        return _turn(self, number)

    def pairs(self, route: int) -> list[tuple[int, int]]:
        """Who sends to whom on a route: (source, receiver), by receiver."""
        return [(int(s), i) for i, s in enumerate(self.sources[route]) if s != i]

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Graph) or self._hash != other._hash:
            return False
        alike = zip(self._arrays, other._arrays, strict=True)
        return self.name == other.name and all(np.array_equal(a, b) for a, b in alike)

    def __repr__(self) -> str:
        return f"Graph({self.name}: {self.num_workers} workers, {self.num_routes} routes)"


@functools.cache
def _turn(graph: Graph, number: int) -> Graph:
    if not 0 <= number < graph.num_turns:
        raise ValueError(f"Graph: {graph.name} has turns 0 to {graph.num_turns - 1}; got {number}")
    of_turn = graph.turns == number
    weights = graph.turn_weights[of_turn]
    together = np.zeros(len(weights), int)  # one turn
    return Graph(f"{graph.name}, turn {number}", graph.sources[of_turn], weights, together)


def of_shifts(name: str, shifts: Sequence[np.ndarray], num_workers: int) -> Graph:
    """A graph of these rows of sources, in which a worker weighs itself and all it hears alike."""
    sources = np.array(shifts, np.int64).reshape(len(shifts), num_workers)
    return Graph(name, sources, np.full(sources.shape, 1 / (1 + len(shifts))))


def read_only(array: np.ndarray) -> np.ndarray:
    """The array, which nobody can write to from now on."""
    array.setflags(write=False)
    return array
