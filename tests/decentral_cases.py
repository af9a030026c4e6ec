"""The protocols after the thesis, each with its oracle and a law of rounds that tells it apart."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import oracles

import gossip_jax as gj
from gossip_jax import compression, graphs

UPDATES = 9
FIRST, SIZE = 5, 13  # entries of the first of two leaves, and of both
LEAVES = [slice(0, FIRST), slice(FIRST, SIZE)]


class Decentral(NamedTuple):
    name: str
    make: Callable[[], Any]
    oracle: oracles.Oracle
    draw: Callable[[int], gj.Draw]
    nesterov: bool = False  # of the local optimizer

    @property
    def protocol(self) -> str:
        """The public name of its factory."""
        return self.name.split(",")[0]


def by_leaf(compress: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda row: np.concatenate([compress(row[which]) for which in LEAVES])


def peers(num_workers: int) -> gj.Draw:
    return gj.uniform_peers(num_workers, p=0.7)


def pairs(period: int) -> Callable[[int], gj.Draw]:
    return lambda num_workers: gj.pairing(num_workers, p=1.0, period=period)


def ring(num_workers: int) -> gj.Draw:
    return gj.every(graphs.ring(num_workers))


def ring_of_period_two(num_workers: int) -> gj.Draw:
    return gj.every(graphs.ring(num_workers), period=2)


def star(num_workers: int) -> gj.Draw:
    return gj.every(graphs.star(num_workers))


def one_peer(num_workers: int) -> gj.Draw:
    return gj.in_turn(graphs.exponential(num_workers))


def chain_at_random(num_workers: int) -> gj.Draw:
    return gj.at_random(graphs.chain(num_workers), 0.7)


def matcha(num_workers: int) -> gj.Draw:
    found = graphs.matcha(graphs.chain(num_workers), 0.6)
    return gj.independently(found.graph, found.probabilities)


def falling(update: Any) -> Any:
    """A learning rate that is 0 at first."""
    return jax.numpy.where(update < 3, 0.0, 0.5 / (1 + update).astype(float))


CASES = (
    Decentral("push_sum, peers", gj.push_sum, oracles.push_sum, peers),
    Decentral("push_sum, star", gj.push_sum, oracles.push_sum, star),
    Decentral("push_sum, one_peer", gj.push_sum, oracles.push_sum, one_peer),
    Decentral("gosgd", gj.gosgd, oracles.gosgd, peers),
    Decentral("push_sum, delayed", lambda: gj.delayed(gj.push_sum()), oracles.overlap_push_sum, peers),
    Decentral("dpsgd, delayed", lambda: gj.delayed(gj.dpsgd()), oracles.late_mixing, chain_at_random),
    Decentral("local_sgd", lambda: gj.local_sgd(3), oracles.local_sgd(3), peers),
    Decentral("post_local_sgd", lambda: gj.post_local_sgd(4, 3), oracles.post_local_sgd(4, 3), peers),
    Decentral("gossip_pga", lambda: gj.gossip_pga(4), oracles.gossip_pga(4), ring),
    Decentral("diloco", lambda: gj.diloco(period=2), oracles.diloco(0.7, 0.9, 2), peers),
    Decentral(
        "slowmo", lambda: gj.slowmo(2, 0.6, 0.8), oracles.slowmo(0.6, 0.8, lambda t: 1, 2), peers
    ),
    Decentral(
        "slowmo, with a schedule",
        lambda: gj.slowmo(2, 0.6, 0.8, falling),
        oracles.slowmo(0.6, 0.8, lambda t: 0.0 if t < 3 else 0.5 / (1 + t), 2),
        peers,
    ),
    Decentral(
        "streaming_diloco",
        lambda: gj.streaming_diloco(period=4, fragments=2, delay=1, merge=0.25),
        oracles.streaming_diloco(0.7, 0.9, 4, LEAVES, 1, 0.25),
        peers,
    ),
    Decentral(
        "noloco",
        lambda: gj.noloco(2, 0.5, 0.7, 0.6),
        oracles.noloco(0.5, 0.7, 0.6, 2),
        pairs(2),
    ),
    Decentral(
        "sparse_loco",
        lambda: gj.sparse_loco(compression.top_k(0.4), 2, 0.9, 0.8),
        oracles.sparse_loco(
            lambda row: np.concatenate([oracles.top_k(2)(row[:FIRST]), oracles.top_k(4)(row[FIRST:])]),
            2,
            0.9,
            0.8,
        ),
        peers,
    ),
    Decentral(
        "quasi_global_momentum",
        lambda: gj.quasi_global_momentum(0.8, 0.7),
        oracles.quasi_global_momentum(0.8, 0.7, False),
        ring,
    ),
    Decentral(
        "quasi_global_momentum, nesterov",
        lambda: gj.quasi_global_momentum(0.8, 0.7, nesterov=True),
        oracles.quasi_global_momentum(0.8, 0.7, True),
        peers,
    ),
    Decentral("gradient_tracking", gj.gradient_tracking, oracles.gradient_tracking_of_updates, peers),
    Decentral(
        "gradient_tracking, of gradients",
        lambda: gj.gradient_tracking("gradients"),
        oracles.gradient_tracking_of_gradients,
        one_peer,
    ),
    Decentral("exact_diffusion", gj.exact_diffusion, oracles.exact_diffusion(True), ring),
    Decentral(
        "exact_diffusion, D²", lambda: gj.exact_diffusion("whole"), oracles.exact_diffusion(False), star
    ),
    Decentral(
        "choco, top_k",
        lambda: gj.choco(compression.top_k(1 / 8), 0.3),
        oracles.choco(by_leaf(oracles.top_k(1)), 0.3),
        ring_of_period_two,
    ),
    Decentral(
        "choco, sign",
        lambda: gj.choco(compression.sign(), 0.4),
        oracles.choco(by_leaf(oracles.sign), 0.4),
        star,
    ),
    Decentral(
        "elastic_averaging, staggered",
        lambda: gj.elastic_averaging(0.1, 4, phase="staggered"),
        oracles.staggered_easgd(0.1, 4),
        peers,
    ),
    Decentral(
        "elastic_averaging, EAMSGD",
        lambda: gj.elastic_averaging(0.1, 3),
        oracles.eamsgd(0.1, 3),
        peers,
        True,
    ),
    Decentral("dpsgd, MATCHA", lambda: gj.dpsgd("atc"), oracles.dpsgd_atc, matcha),
)


def drawn(draw: gj.Draw, num_updates: int = UPDATES) -> gj.Round:
    """Stacked rounds of the updates 1 to T."""
    return gj.training.draw_rounds(draw, gj.keys.run_key(1), 1, num_updates)


def as_matrices(rounds: gj.Round) -> oracles.Rounds:
    """What an oracle needs of rounds, by loops over their plain values."""
    graph, found = rounds.graph, oracles.Rounds(np.asarray(rounds.step).tolist(), [], [])
    for number in range(len(found.steps)):
        workers = graph.num_workers
        receives, mixing = np.zeros((workers, workers), bool), np.eye(workers)
        if rounds.peer is not None:
            peer = np.asarray(rounds.peer)[number]
            for i, k in enumerate(peer):
                if k >= 0:
                    receives[k, i] = True  # i pushes to the one that it picked
            contact = receives | receives.T
            degree = contact.sum(axis=1)
            for i, k in zip(*np.nonzero(contact), strict=True):
                weight = 1 / (1 + max(degree[i], degree[k]))
                mixing[i, k] += weight
                mixing[i, i] -= weight
        else:
            used = np.flatnonzero(np.asarray(rounds.routes)[number])
            is_one_turn = len({int(graph.turns[route]) for route in used}) == 1
            weights = graph.turn_weights if is_one_turn else graph.weights
            for route in used:
                for i, k in enumerate(graph.sources[route]):
                    if i != k:
                        receives[i, k] = True
                        mixing[i, k] += weights[route, i]
                        mixing[i, i] -= weights[route, i]
        found.mixing.append(mixing)
        found.receives.append(receives)
    return found


def split(x: np.ndarray) -> dict[str, np.ndarray]:
    """Values [..., n] as two leaves."""
    return {"first": x[..., :FIRST], "second": x[..., FIRST:].reshape(*x.shape[:-1], 2, -1)}


def joined(tree: Any) -> np.ndarray:
    """What was `split`."""
    first, second = np.asarray(tree["first"]), np.asarray(tree["second"])
    return np.concatenate([first, second.reshape(*first.shape[:-1], -1)], axis=-1)


def local_optimizer(momentum: float = oracles.MOMENTUM, nesterov: bool = False) -> Any:
    return optax.sgd(oracles.RATE, momentum=momentum or None, nesterov=nesterov)


def updates_of(optimizer: Any) -> Any:
    """One worker's parameters after each update, and its last state: `(params, grads, rounds)`."""

    def many(params: Any, grads: Any, rounds: gj.Round) -> Any:
        def step(carry, inputs):
            params, state = carry
            grads, round = inputs
            updates, state = optimizer.update(grads, state, params, round=round)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        (_, state), found = jax.lax.scan(step, (params, optimizer.init(params)), (grads, rounds))
        return found, state

    return many


def run(
    protocol: Any, rounds: gj.Round, start: np.ndarray, gradients: np.ndarray, local: Any = None
) -> tuple[np.ndarray, Any]:
    """Parameters after each update, [T, W, n], and the stacked state at the end, under vmap."""
    return runner(protocol, rounds, len(start), "vmap", local)(start, gradients)


def runner(
    protocol: Any, rounds: gj.Round, num_workers: int, backend: Any, local: Any = None
) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, Any]]:
    """From parameters and gradients to what `run` returns; compiled once."""
    place = gj.place(num_workers, backend)
    optimizer = gj.decentralise(local_optimizer() if local is None else local, protocol)
    mapped = place.map(updates_of(optimizer), in_axes=(0, 0, None))

    def trained(start: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, Any]:
        params = place.scatter(split(start.astype(np.float32)))
        grads = place.scatter(split(gradients.swapaxes(0, 1).astype(np.float32)))
        found, state = jax.device_get(mapped(params, grads, place.share(rounds)))
        return joined(found).swapaxes(0, 1), state

    return trained


def values(rng: np.random.Generator, num_workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal replicas [W, n], and gradients [T, W, n]."""
    start = np.broadcast_to(rng.normal(size=SIZE), (num_workers, SIZE))
    return start, rng.normal(size=(UPDATES, num_workers, SIZE))


def of_type(state: Any, kind: type) -> Any:
    """The only node of this type."""
    (found,) = [
        node
        for node in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
        if isinstance(node, kind)
    ]
    return found
