"""Base-(k+1) graphs (Takezawa et al., 2023, https://arxiv.org/abs/2305.11420): exact for every W."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.complete import matchings

_Group = list[int]  # of workers
_Turn = list[tuple[_Group, float]]  # groups that mix all with all, each with a weight for each other


@functools.cache
def base(num_workers: int, k: int = 1) -> Graph:
    """Turns after which all workers hold the exact mean, for every W, each talking to k others at most.

    Use it with `gj.in_turn`: the mean is exact after all turns of a period, if nothing else changes
    meanwhile. With k = 1 a turn is a matching with a weight for each pair, and a period takes about
    2 log2 W turns: 1, 3, 2, 5, 4, 5, 3 for W = 2 to 8. Weights can exceed ½ and workers idle, so within
    a period workers may move apart.

    W is written in base k + 1 as blocks of falling sizes. Each block averages within itself, a
    hypercube of sides of up to k + 1; then the largest hands each worker of the later blocks its value,
    with a weight that leaves its own mean that of all, and so on; then each block averages once more.
    Where W has divisors of up to k + 1, the same for what is left of it, and a hypercube across, may be
    shorter.

    For k > 1 the paper has blocks hand on their values to k others at once, where this does so to one:
    exact as well, at times in more turns.

    Args:
      num_workers: W, 1 or more.
      k: the most peers that a worker has in a turn, 1 or more.

    Raises:
      ValueError: an argument is out of range.

    Examples:
      >>> base(6).num_turns
      4

    References:
      Takezawa, Sato, Bao, Niwa, Yamada, *Beyond Exponential Graph: Communication-Efficient Topologies
      for Decentralized Learning via Finite-time Convergence*, 2023 (https://arxiv.org/abs/2305.11420)
    """
    num_workers = checks.at_least_one("base", "num_workers", num_workers)
    k = checks.at_least_one("base", "k", k)
    name = f"base({num_workers})" if k == 1 else f"base({num_workers}, k={k})"
    routes = [
        (turn, *route)
        for turn, of in enumerate(_turns(num_workers, k))
        for route in _routes(of, num_workers)
    ]
    shape = len(routes), num_workers
    sources = np.array([sources for _, sources, _ in routes], np.int64).reshape(shape)
    weights = np.array([weights for _, _, weights in routes]).reshape(shape)
    return Graph(name, sources, weights, [turn for turn, _, _ in routes], weights)


def _turns(num_workers: int, k: int) -> list[_Turn]:
    """The shorter of the two ways."""
    smooth, rest = _smooth_part(num_workers, k + 1)
    simple = _simple(range(num_workers), k)
    within = [_simple(range(start, start + rest), k) for start in range(0, num_workers, rest)]
    across = [_hypercube(range(start, num_workers, rest), k) for start in range(rest)]
    divided = [*_side_by_side(within), *_side_by_side(across)]
    return divided if smooth > 1 and len(divided) < len(simple) else simple


def _simple(workers: Sequence[int], k: int) -> list[_Turn]:
    """By blocks, as the digits of their number in base k + 1 say."""
    blocks: list[Sequence[int]] = []
    start = 0
    while start < len(workers):
        power = 1
        while power * (k + 1) <= len(workers) - start:
            power *= k + 1
        size = (len(workers) - start) // power * power
        blocks.append(workers[start : start + size])
        start += size
    cubes = [_hypercube(block, k) for block in blocks]
    first = len(cubes[0])
    turns: list[_Turn] = []

    def put(turn: int, groups: _Turn) -> None:
        turns.extend([] for _ in range(turn + 1 - len(turns)))
        turns[turn] += groups

    for number, cube in enumerate(cubes):
        for turn, groups in enumerate(cube):
            put(turn, groups)
            if len(blocks) > 1:  # once more, from after its value was handed on
                put(first + min(number + 1, len(blocks) - 1) + turn, groups)
    for number, block in enumerate(blocks[:-1]):
        later = [worker for other in blocks[number + 1 :] for worker in other]
        weight = len(block) / (len(block) + len(later))
        put(first + number, [([one, other], weight) for one, other in zip(block, later, strict=False)])
    return turns


def _hypercube(workers: Sequence[int], k: int) -> list[_Turn]:
    """Along one side after the other, of up to k + 1 workers each; their number has such divisors."""
    sides = list(_divisors(len(workers), k + 1))
    grid = np.array(workers).reshape(sides)
    lines = (np.moveaxis(grid, axis, -1).reshape(-1, side) for axis, side in enumerate(sides))
    return [[(line.tolist(), 1 / len(line)) for line in along] for along in lines]


def _divisors(number: int, most: int) -> Iterator[int]:
    """As few factors of up to `most` as dividing by the largest first gives."""
    while number > 1:
        factor = next(f for f in range(min(most, number), 1, -1) if number % f == 0)
        number //= factor
        yield factor


def _smooth_part(number: int, most: int) -> tuple[int, int]:
    """The part of a number that has divisors of up to `most`, and the rest."""
    smooth = 1
    while divisor := next((f for f in range(2, min(most, number) + 1) if number % f == 0), None):
        smooth, number = smooth * divisor, number // divisor
    return smooth, number


def _side_by_side(several: Sequence[list[_Turn]]) -> Iterator[_Turn]:
    """Equally many turns of groups that do not overlap, at once."""
    for turns in zip(*several, strict=True):
        yield [group for turn in turns for group in turn]


def _routes(turn: _Turn, num_workers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sources and weights of the routes that have all members of each group meet, in pairs."""
    meetings = [(np.array(group), matchings(len(group)), weight) for group, weight in turn]
    for number in range(max((len(rows) for _, rows, _ in meetings), default=0)):
        sources, weights = np.arange(num_workers), np.zeros(num_workers)
        for group, rows, weight in meetings:
            if number < len(rows):
                sources[group] = group[rows[number]]
                weights[group] = weight
        yield sources, weights
