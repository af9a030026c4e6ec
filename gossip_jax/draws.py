"""Laws of rounds: how it is decided who talks to whom at an update."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float64, Key

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.complete import Routes, complete, matchings
from gossip_jax.graphs.measures import is_mixed_at_once
from gossip_jax.rounds import Round, all_routes, as_int32, in_contact

_MOST_WITH_ALL = 8  # workers up to which pairing draws among all perfect matchings


class Draw(Protocol):
    """A law of rounds. Equal keys and steps give equal rounds, to the bit, on every worker.

    No setting of JAX changes them: workers that disagree on a round wait for each other for ever.
    """

    @property
    def num_workers(self) -> int:
        """W."""
        ...

    @property
    def period(self) -> int:
        """τ: only updates that it divides can have contacts."""
        ...

    @property
    def graph(self) -> Graph:
        """The graph of its rounds."""
        ...

    def __call__(self, key: Key[Array, ""], step: ArrayLike) -> Round:
        """Draws the round of update `step` (counted from 1) from the run's shared key."""
        ...

    def route_probability(self) -> Float64[np.ndarray, " E"]:
        """float64 [E]: the probability that a route is in use, at an update where it may be."""
        ...

    def contact_probability(self) -> Float64[np.ndarray, "W W"]:
        """float64 [W, W]: the probability that i and k are in contact, at an update where they may."""
        ...


def uniform_peers(
    num_workers: int,
    p: float,
    period: int = 1,
    weights: ArrayLike | None = None,
    routes: Routes = "auto",
) -> Draw:
    """Every worker initiates contact independently, with a peer of its own choice.

    At an update t with `t % period == 0`, each worker initiates with probability p and draws its peer
    uniformly among the other W - 1, or in proportion to `weights`. Several workers may pick the same
    one, so a worker can be in several exchanges of one round.

    Args:
      num_workers: W, 1 or more. A single worker has nobody to talk to: its rounds are silent.
      p: the communication probability, in [0, 1].
      period: the communication period τ, 1 or more.
      weights: float [W, W] or None; row i holds what weight worker i gives to each peer. Not
        negative, and at least one positive entry a row off the diagonal, which is ignored.
      routes: of the complete graph that serves the contacts: "pairs", so that only the two of a contact
        send anything; "matchings", for a program that compiles quickly, where a contact has its whole
        matching send; "auto", pairs for up to 8 workers.

    Returns:
      `draw(key, step) -> Round`, which can be jitted and vmapped; `step` counts from 1.

    Raises:
      ValueError: an argument is out of range, or `weights` of a wrong shape.

    Examples:
      >>> draw = uniform_peers(num_workers=4, p=1 / 32)
      >>> draw(jax.random.key(0), step=1).peer
      Array([-1, -1, -1, -1], dtype=int32)

    References:
      S. Pramod, *Elastic Gossip*, 2018 (https://arxiv.org/abs/1812.02407)
    """
    num_workers, p, period = _checked("uniform_peers", num_workers, p, period)
    if weights is not None:
        weights = _checked_weights(np.asarray(weights, np.float64), num_workers)
    return _UniformPeers(num_workers, p, period, complete(num_workers, routes), weights)


def pairing(
    num_workers: int,
    p: float,
    period: int = 1,
    routes: Routes = "auto",
    among: Literal["auto", "all", "compiled"] = "auto",
) -> Draw:
    """A random perfect matching, of which each pair talks where one of the two initiates.

    At an update t with `t % period == 0` the workers are matched in pairs (for an odd W one of them,
    any with equal probability, sits out). Each worker initiates contact with its partner with
    probability p. So a worker is in at most one exchange a round, and any two are matched equally
    often.

    For up to 8 workers every perfect matching is equally probable: (W - 1)!! of them, or W!! for an odd
    W. For more, one of the W - 1 (odd: W) matchings that are compiled as routes is drawn, each as
    probable as any other, so that a round is one exchange of all at once; with `among="all"` it is any
    perfect matching here too, whose pairs are exchanged over as many routes as they lie on.

    Args:
      num_workers: W, 1 or more. A single worker has nobody to talk to: its rounds are silent.
      p: the communication probability, in [0, 1].
      period: the communication period τ, 1 or more.
      routes: of the complete graph that serves the contacts, as in `uniform_peers`.
      among: "all" perfect matchings, or the "compiled" ones; "auto", all for up to 8 workers.

    Returns:
      `draw(key, step) -> Round`, which can be jitted and vmapped; `step` counts from 1.

    Raises:
      ValueError: an argument is out of range.

    Examples:
      >>> draw = pairing(num_workers=4, p=1.0)
      >>> draw(jax.random.key(0), step=1).peer
      Array([3, 2, 1, 0], dtype=int32)
    """
    num_workers, p, period = _checked("pairing", num_workers, p, period)
    if among not in ("auto", "all", "compiled"):
        raise ValueError(f"pairing: among must be 'auto', 'all' or 'compiled'; got {among!r}")
    graph = complete(num_workers, routes)
    is_compiled = among == "compiled" or (among == "auto" and num_workers > _MOST_WITH_ALL)
    law = _CompiledPairing if is_compiled else _Pairing
    return law(num_workers, p, period, graph)


def every(graph: Graph, period: int = 1) -> Draw:
    """All routes of a graph at every τ-th update: a static graph, as in D-PSGD.

    Args:
      graph: the graph.
      period: the communication period τ, 1 or more.

    Returns:
      `draw(key, step) -> Round`; the key is not used.

    Raises:
      ValueError: the period is out of range, or the graph is made to be used in turns (`graphs.base`).

    Examples:
      >>> from gossip_jax import graphs
      >>> every(graphs.ring(4))(jax.random.key(0), step=1).routes
      Array([ True,  True], dtype=bool)
    """
    if not is_mixed_at_once(_checked_graph("every", graph)):
        raise ValueError(
            f"every: with all routes of {graph.name} at once a worker would keep nothing of its own; "
            f"use in_turn"
        )
    return _Every(graph, checks.at_least_one("every", "period", period))


def in_turn(graph: Graph, period: int = 1) -> Draw:
    """The turns of a graph one after the other, one at every τ-th update, and then anew.

    A turn is a single route for most graphs: of `graphs.exponential` and `graphs.hypercube` this makes
    the one-peer graphs. Those of `graphs.base` give the exact mean after one period.

    Args:
      graph: the graph.
      period: the communication period τ, 1 or more.

    Returns:
      `draw(key, step) -> Round`; the key is not used. Update τ has the first turn.

    Raises:
      ValueError: the period is out of range.

    Examples:
      >>> from gossip_jax import graphs
      >>> in_turn(graphs.exponential(8))(jax.random.key(0), step=2).routes
      Array([False,  True, False], dtype=bool)
    """
    return _InTurn(_checked_graph("in_turn", graph), checks.at_least_one("in_turn", "period", period))


def at_random(graph: Graph, p: float, period: int = 1) -> Draw:
    """One turn of a graph, any with equal probability, with probability p at every τ-th update.

    Args:
      graph: the graph.
      p: the probability that workers talk at all, in [0, 1].
      period: the communication period τ, 1 or more.

    Returns:
      `draw(key, step) -> Round`, which can be jitted and vmapped; `step` counts from 1.

    Raises:
      ValueError: an argument is out of range.

    Examples:
      >>> from gossip_jax import graphs
      >>> int(at_random(graphs.ring(4), p=1.0)(jax.random.key(0), step=1).routes.sum())
      1
    """
    return _AtRandom(
        _checked_graph("at_random", graph),
        checks.at_least_one("at_random", "period", period),
        checks.probability("at_random", "p", p),
    )


def independently(graph: Graph, probabilities: ArrayLike | Sequence[float], period: int = 1) -> Draw:
    """Each route of a graph at every τ-th update with a probability of its own, as in MATCHA.

    Args:
      graph: the graph, such as `graphs.matcha` returns.
      probabilities: floats [E], in [0, 1]: how probable it is that a route is in use.
      period: the communication period τ, 1 or more.

    Returns:
      `draw(key, step) -> Round`, which can be jitted and vmapped; `step` counts from 1.

    Raises:
      ValueError: an argument is out of range, or there is not one probability for each route.

    Examples:
      >>> from gossip_jax import graphs
      >>> draw = independently(graphs.chain(3), [1.0, 0.0])
      >>> draw(jax.random.key(0), step=1).routes
      Array([ True, False], dtype=bool)
    """
    chances = np.array(probabilities, float)
    if chances.shape != (_checked_graph("independently", graph).num_routes,):
        raise ValueError(
            f"independently: {graph.name} has {graph.num_routes} routes, so probabilities must have "
            f"shape {(graph.num_routes,)}; got {chances.shape}"
        )
    for chance in chances.tolist():
        checks.probability("independently", "each of probabilities", chance)
    period = checks.at_least_one("independently", "period", period)
    return _Independently(graph, period, tuple(chances.tolist()))


@dataclasses.dataclass(frozen=True, eq=False)
class _IndependentCoins:
    """Each worker initiates with probability p; how the peers are drawn is up to the law."""

    num_workers: int
    p: float
    period: int
    graph: Graph

    def __call__(self, key: Array, step: ArrayLike) -> Round:
        step = as_int32("step", step)
        # Also while a jitted caller is traced: JAX keeps it with what is drawn in here.
        with jax.threefry_partitionable(True):
            coin_key, peer_key = jax.random.split(jax.random.fold_in(key, step))
            peer = self._peers(peer_key)
            workers = jnp.arange(self.num_workers, dtype=peer.dtype)
            # In 32 bits, whatever jax_enable_x64 says: the draws are the same everywhere.
            coins = jax.random.uniform(coin_key, workers.shape, jnp.float32) < self.p
        initiates = coins & (step % self.period == 0) & (peer != workers)
        return Round(jnp.where(initiates, peer, -1), step, self.graph)

    def _peers(self, key: Array) -> Array:
        """Integers [W]: whom each worker contacts if it does; itself, where it has nobody."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class _UniformPeers(_IndependentCoins):
    weights: np.ndarray | None  # float64 [W, W], rows sum to 1

    def _peers(self, key: Array) -> Array:
        workers = jnp.arange(self.num_workers, dtype=jnp.int32)
        if self.num_workers == 1:
            return workers
        if self.weights is None:
            other = jax.random.randint(key, workers.shape, 0, self.num_workers - 1, jnp.int32)
            return other + (other >= workers).astype(other.dtype)
        with np.errstate(divide="ignore"):  # a weight of 0 is a logit of -inf: never drawn
            logits = np.log(self.weights).astype(np.float32)
        return jax.random.categorical(key, jnp.asarray(logits), mode="low")

    @property
    def _picks(self) -> np.ndarray:
        return self.p * (_uniform(self.num_workers) if self.weights is None else self.weights)

    def contact_probability(self) -> np.ndarray:
        return self._picks + self._picks.T - self._picks * self._picks.T

    def route_probability(self) -> np.ndarray:
        picks = self._picks[np.arange(self.num_workers), self.graph.sources]
        return 1 - np.prod(1 - picks, axis=1)


class _AnyPairing(_IndependentCoins):
    """Each pair of workers is matched as often as any other."""

    def __call__(self, key: Array, step: ArrayLike) -> Round:
        round = super().__call__(key, step)
        return round.replace(num_routes=range(min(self._most, self.graph.num_routes) + 1))

    @property
    def _most(self) -> int:
        """How many routes a round can use: a pair of workers is on one of them."""
        return self.num_workers // 2

    def contact_probability(self) -> np.ndarray:
        matched = _uniform(self.num_workers)
        if self.num_workers % 2 == 1:
            matched *= (self.num_workers - 1) / self.num_workers
        return matched * (1 - (1 - self.p) ** 2)


class _Pairing(_AnyPairing):
    def _peers(self, key: Array) -> Array:
        order = jax.random.permutation(key, self.num_workers)
        neighbour = np.arange(self.num_workers) ^ 1  # in order, the pairs are 0-1, 2-3, ...
        if self.num_workers % 2 == 1:
            neighbour[-1] = self.num_workers - 1  # the last in order sits out
        return jnp.zeros_like(order).at[order].set(order[neighbour])

    def route_probability(self) -> np.ndarray:
        """Of n pairs of a route, j are drawn together by as many matchings as the others can be in."""
        active = 1 - (1 - self.p) ** 2
        num_pairs = self.graph.receives.sum(axis=1) // 2
        most = self.num_workers // 2
        together = [_num_matchings(self.num_workers - 2 * j) for j in range(most + 1)]
        return np.array(
            [
                -sum(
                    math.comb(n, j) * together[j] / together[0] * (-active) ** j
                    for j in range(1, int(n) + 1)
                )
                for n in num_pairs.tolist()
            ]
        )


class _CompiledPairing(_AnyPairing):
    def _peers(self, key: Array) -> Array:
        partners = matchings(self.num_workers)
        if len(partners) == 0:
            return jnp.arange(self.num_workers, dtype=jnp.int32)
        drawn = jax.random.randint(key, (), 0, len(partners), jnp.int32)
        return jnp.asarray(partners, jnp.int32)[drawn]

    @property
    def _most(self) -> int:
        is_of_pairs = self.graph.num_routes > len(matchings(self.num_workers))
        return super()._most if is_of_pairs else 1  # all pairs of a round are of one matching

    def route_probability(self) -> np.ndarray:
        silent = (1 - self.p) ** (2 * (self.graph.receives.sum(axis=1) // 2))
        return (1 - silent) / max(len(matchings(self.num_workers)), 1)


@dataclasses.dataclass(frozen=True, eq=False)
class _OfRoutes:
    """Rounds that say which routes are in use, at the updates that τ divides."""

    graph: Graph
    period: int

    @property
    def num_workers(self) -> int:
        return self.graph.num_workers

    @property
    def _numbers(self) -> list[int]:
        """How many routes are in use, in each of the rounds in which any are."""
        return np.bincount(self.graph.turns, minlength=self.graph.num_turns).tolist()

    def route_probability(self) -> np.ndarray:
        raise NotImplementedError

    def contact_probability(self) -> np.ndarray:
        graph = self.graph
        chance = {int(t): c for t, c in zip(graph.turns, self.route_probability(), strict=True)}
        turns = [all_routes(graph.turn(turn), 1) for turn in chance]
        contacts = [np.asarray(in_contact(turn), float) for turn in turns]
        none = np.zeros((self.num_workers, self.num_workers))
        return sum((c * p for c, p in zip(contacts, chance.values(), strict=True)), start=none)

    def _round(self, routes: Array, step: Array, is_sure: bool = True) -> Round:
        """The round with these routes, known to have some where it is sure that workers talk."""
        least, most = min(self._numbers, default=0), max(self._numbers, default=0)
        is_sure = is_sure and self.period == 1
        routes = routes & (step % self.period == 0)
        if is_sure:
            known = range(least, most + 1)
        else:
            known = range(0, most + 1, least if 0 < least == most else 1)
        return Round.of_routes(self.graph, routes, step, known)


@dataclasses.dataclass(frozen=True, eq=False)
class _Every(_OfRoutes):
    def __call__(self, key: Array, step: ArrayLike) -> Round:
        del key
        return self._round(jnp.ones(self.graph.num_routes, bool), as_int32("step", step))

    @property
    def _numbers(self) -> list[int]:
        return [self.graph.num_routes]

    def route_probability(self) -> np.ndarray:
        return np.ones(self.graph.num_routes)

    def contact_probability(self) -> np.ndarray:
        return np.asarray(in_contact(all_routes(self.graph, 1)), float)


@dataclasses.dataclass(frozen=True, eq=False)
class _InTurn(_OfRoutes):
    def __call__(self, key: Array, step: ArrayLike) -> Round:
        del key
        step = as_int32("step", step)
        turn = (step // self.period - 1) % max(self.graph.num_turns, 1)
        return self._round(self.graph.turns == turn, step)

    def route_probability(self) -> np.ndarray:
        return np.full(self.graph.num_routes, 1 / max(self.graph.num_turns, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class _AtRandom(_OfRoutes):
    p: float

    def __call__(self, key: Array, step: ArrayLike) -> Round:
        step = as_int32("step", step)
        # Also while a jitted caller is traced: JAX keeps it with what is drawn in here.
        with jax.threefry_partitionable(True):
            coin_key, turn_key = jax.random.split(jax.random.fold_in(key, step))
            talks = jax.random.uniform(coin_key, (), jnp.float32) < self.p
            turn = jax.random.randint(turn_key, (), 0, max(self.graph.num_turns, 1), jnp.int32)
        return self._round((self.graph.turns == turn) & talks, step, is_sure=False)

    def route_probability(self) -> np.ndarray:
        return np.full(self.graph.num_routes, self.p / max(self.graph.num_turns, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class _Independently(_OfRoutes):
    probabilities: tuple[float, ...]

    def __call__(self, key: Array, step: ArrayLike) -> Round:
        step = as_int32("step", step)
        # Also while a jitted caller is traced: JAX keeps it with what is drawn in here.
        with jax.threefry_partitionable(True):
            key = jax.random.fold_in(key, step)
            coins = jax.random.uniform(key, (self.graph.num_routes,), jnp.float32)
        routes = (coins < jnp.asarray(self.probabilities, jnp.float32)) & (step % self.period == 0)
        return Round.of_routes(self.graph, routes, step)

    def route_probability(self) -> np.ndarray:
        return np.array(self.probabilities)

    def contact_probability(self) -> np.ndarray:
        silent = np.ones((self.num_workers, self.num_workers))
        for route, chance in enumerate(self.probabilities):
            one = Round.of_routes(self.graph, np.arange(self.graph.num_routes) == route)
            silent *= 1 - chance * np.asarray(in_contact(one), float)
        return 1 - silent


def _num_matchings(num_workers: int) -> int:
    """How many perfect matchings there are; of an odd number of workers one is left out."""
    odd = num_workers - 1 + num_workers % 2
    return math.prod(range(odd, 0, -2))


def _checked_graph(owner: str, graph: Any) -> Graph:
    if not isinstance(graph, Graph):
        raise ValueError(f"{owner}: graph must be a gossip_jax.Graph; got {type(graph).__name__}")
    return graph


def _uniform(num_workers: int) -> np.ndarray:
    """float64 [W, W]: every worker's law over its W - 1 peers."""
    return (1 - np.eye(num_workers)) / max(num_workers - 1, 1)


def _checked(owner: str, num_workers: int, p: float, period: int) -> tuple[int, float, int]:
    return (
        checks.at_least_one(owner, "num_workers", num_workers),
        checks.probability(owner, "p", p),
        checks.at_least_one(owner, "period", period),
    )


def _checked_weights(weights: np.ndarray, num_workers: int) -> np.ndarray:
    """`weights` without its diagonal, each row divided by its sum."""
    if weights.shape != (num_workers, num_workers):
        raise ValueError(
            f"uniform_peers: weights must have shape [W, W] = {(num_workers, num_workers)}; "
            f"got {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("uniform_peers: weights must be finite and not negative; got " + str(weights))
    weights = weights * (1 - np.eye(num_workers))
    total = weights.sum(axis=1, keepdims=True)
    if num_workers > 1 and (total == 0).any():
        raise ValueError(
            f"uniform_peers: each row of weights needs a positive entry for another worker; "
            f"row {int(np.argmin(total))} has none"
        )
    return weights / np.where(total == 0, 1, total)
