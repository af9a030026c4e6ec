"""What each protocol does, on stacked arrays in NumPy: the oracle of the tests.

Written from the table of updates in the thesis (https://arxiv.org/abs/1812.02407), and not from the
library, of which it imports nothing. One update takes `peer` (whom each worker picked, -1: nobody),
the step, one leaf of the parameters and of the local updates, [W, ...], and EASGD's centre [...];
it returns the new parameters and centre.
"""

from collections.abc import Callable

import numpy as np

Update = Callable[..., tuple[np.ndarray, np.ndarray]]


def contacts(peer: np.ndarray) -> list[tuple[int, int]]:
    """Every exchange twice, seen from both sides; a pair that picked each other is one exchange."""
    picks = {(i, int(k)) for i, k in enumerate(peer) if k >= 0}
    return sorted(picks | {(k, i) for i, k in picks})


def no_communication(peer, step, params, updates, center):
    return params + updates, center


def all_reduce(peer, step, params, updates, center):
    # SGD's updates are linear in the gradients: their mean is the update of the mean gradient.
    return params + updates.mean(axis=0), center


def elastic_gossip(alpha: float) -> Update:
    def update(peer, step, params, updates, center):
        new = params + updates
        for i, k in contacts(peer):
            new[i] -= alpha * (params[i] - params[k])
        return new, center

    return update


def gossiping_sgd_pull(peer, step, params, updates, center):
    new = params + updates
    for i, k in enumerate(peer):
        if k >= 0:
            new[i] -= (params[i] - params[k]) / 2
    return new, center


def gossiping_sgd_push(peer, step, params, updates, center):
    held = [[replica] for replica in params]
    for i, k in enumerate(peer):
        if k >= 0:
            held[k].append(params[i])
    return np.stack([np.mean(replicas, axis=0) for replicas in held]) + updates, center


def dpsgd(order: str) -> Update:
    """https://arxiv.org/abs/1705.09056, on the contacts, with Metropolis-Hastings weights."""

    def update(peer, step, params, updates, center):
        before = params + updates if order == "atc" else params
        new, pairs = params + updates, contacts(peer)
        degree = [sum(i == one for i, _ in pairs) for one in range(len(peer))]
        for i, k in pairs:
            new[i] -= (before[i] - before[k]) / (1 + max(degree[i], degree[k]))
        return new, center

    return update


def elastic_averaging(alpha: float, period: int) -> Update:
    def update(peer, step, params, updates, center):
        if step % period or len(peer) == 1:  # one worker alone is plain SGD
            return params + updates, center
        away = params - center
        return params + updates - alpha * away, center + alpha * away.sum(axis=0)

    return update
