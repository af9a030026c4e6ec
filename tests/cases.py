"""One row a protocol: what it is and what it promises. Properties are tested over these rows."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
import reference

import gossip_jax as gj
from gossip_jax.graphs.complete import matchings

BACKENDS = ("vmap", "pmap", "shard_map")
PLACEMENTS = (*BACKENDS, "two a device")
# Of the product, each backend and each number of workers is in the default suite, and the rest is slow.
IN_SHORT = {("vmap", 1), ("vmap", 2), ("vmap", 5), ("pmap", 3), ("pmap", 8), ("shard_map", 4)}
IN_LONG = {("vmap", 8), ("pmap", 7), ("shard_map", 2), ("shard_map", 6)}
BACKENDS_AND_WORKERS = [
    *(pytest.param(*both) for both in sorted(IN_SHORT)),
    *(pytest.param(*both, marks=pytest.mark.slow) for both in sorted(IN_LONG)),
]
AXES = (0, 0, None)  # of `Case.one_update`: the round is shared


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    protocol: str  # its public name
    make: Callable[[], optax.GradientTransformationExtraArgs]
    oracle: reference.Update
    before_optimizer: bool = False  # where it stands in the chain
    needs_round: bool = True
    pairwise: bool = False  # exchanges between two workers, chosen by the round
    conserves_sum: bool = False  # of the parameters over workers, and the centre where it has one
    period: int = 1  # between updates at which it may communicate

    def chain(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
        parts = (self.make(), optimizer) if self.before_optimizer else (optimizer, self.make())
        return optax.chain(*parts)

    def one_update(self) -> Callable[..., Any]:
        """One worker's update, the local one being given: `((params, state), updates, round)`."""
        protocol = self.make()

        def update(carry: tuple[Any, Any], updates: Any, round: gj.Round) -> tuple[Any, Any]:
            params, state = carry
            updates, state = protocol.update(updates, state, params, round=round)
            return jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates), state

        return update

    def state(self, center: Any) -> Any:
        """The protocol's stacked state, with this centre, [W, ...], where it has one."""
        return self.make().init(center)


CASES = (
    Case(
        "no_communication",
        "no_communication",
        gj.no_communication,
        reference.no_communication,
        needs_round=False,
        conserves_sum=True,
    ),
    Case(
        "all_reduce",
        "all_reduce",
        gj.all_reduce,
        reference.all_reduce,
        before_optimizer=True,
        needs_round=False,
        conserves_sum=True,
    ),
    Case(
        "elastic_gossip",
        "elastic_gossip",
        lambda: gj.elastic_gossip(alpha=0.3),
        reference.elastic_gossip(0.3),
        pairwise=True,
        conserves_sum=True,
    ),
    Case(
        "gossiping_sgd_pull",
        "gossiping_sgd",
        lambda: gj.gossiping_sgd("pull"),
        reference.gossiping_sgd_pull,
        pairwise=True,
    ),
    Case(
        "gossiping_sgd_push",
        "gossiping_sgd",
        lambda: gj.gossiping_sgd("push"),
        reference.gossiping_sgd_push,
        pairwise=True,
    ),
    Case(
        "dpsgd_awc",
        "dpsgd",
        gj.dpsgd,
        reference.dpsgd("awc"),
        pairwise=True,
        conserves_sum=True,
    ),
    Case(
        "dpsgd_atc",
        "dpsgd",
        lambda: gj.dpsgd("atc"),
        reference.dpsgd("atc"),
        pairwise=True,
        conserves_sum=True,
    ),
    Case(
        "elastic_averaging",
        "elastic_averaging",
        lambda: gj.elastic_averaging(alpha=0.1, period=2),
        reference.elastic_averaging(0.1, 2),
        conserves_sum=True,
        period=2,
    ),
)
PAIRWISE = tuple(case for case in CASES if case.pairwise)


def placement(name: Any, num_workers: int) -> gj.Placement:
    """One of `PLACEMENTS`."""
    if name == "two a device":
        assert num_workers % 2 == 0
        return gj.place(num_workers, "shard_map", devices=jax.devices()[: num_workers // 2])
    return gj.place(num_workers, name)


def communicate(protocol: Any, place: gj.Placement) -> Callable[..., Any]:
    """One update of all workers, the local one being given: `(params, updates, round) -> params`."""

    def move(params: Any, updates: Any, round: gj.Round) -> Any:
        updates, _ = protocol.update(updates, protocol.init(params), params, round=round)
        return jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)

    return place.map(move, AXES)


def one_way_rounds(num_workers: int) -> dict[str, gj.Round]:
    """Rounds of routes that are no swaps, known to be in use and not, by name."""
    key = gj.keys.run_key(0)
    sources = (np.arange(num_workers) - 1) % num_workers
    shift = gj.Graph(f"shift({num_workers})", [sources], np.ones((1, num_workers)))
    return {
        "shift": gj.Round.of_routes(shift, np.array([True])),
        "ring": gj.every(gj.graphs.ring(num_workers))(key, 1),
        "exponential": gj.in_turn(gj.graphs.exponential(num_workers))(key, 1),
        "star": gj.at_random(gj.graphs.star(num_workers), 1.0)(key, 1),
    }


def possible_exchanges(num_workers: int) -> set[frozenset[tuple[int, int]]]:
    """The pairs that swap at once: each by itself for up to 8 workers, and else all of a matching."""
    if num_workers <= 8:
        return {frozenset([pair]) for pair in itertools.combinations(range(num_workers), 2)}
    rows = matchings(num_workers).tolist()
    return {frozenset((i, k) for i, k in enumerate(row) if i < k) for row in rows}


def random_peers(rng: np.random.Generator, num_workers: int, p: float = 0.6) -> np.ndarray:
    """A round, int32 [W]: each worker picks, with probability p, any other."""
    workers = np.arange(num_workers)
    if num_workers == 1:
        return np.array([-1], np.int32)
    others = (workers + rng.integers(1, num_workers, num_workers)) % num_workers
    return np.where(rng.random(num_workers) < p, others, -1).astype(np.int32)


def telling_peers(rng: np.random.Generator, num_workers: int) -> list[np.ndarray]:
    """Rounds in which protocols could go wrong: nobody, everybody to one, one another, a ring."""
    nobody = np.full(num_workers, -1, np.int32)
    rounds = [nobody]
    if num_workers > 1:
        to_last = nobody.copy()
        to_last[:-1] = num_workers - 1
        mutual = nobody.copy()
        mutual[[0, num_workers - 1]] = num_workers - 1, 0
        ring = (np.arange(num_workers, dtype=np.int32) + 1) % num_workers
        rounds += [to_last, mutual, ring]
    return rounds + [random_peers(rng, num_workers) for _ in range(4)]
