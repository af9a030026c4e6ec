"""What each protocol after the thesis does, on stacked arrays in NumPy: from the equations.

An oracle takes the parameters at the start, [W, n], the gradients of all updates, [T, W, n], and what
the rounds say, and returns the parameters after each update, [T, W, n]. Of the library it imports
nothing. The local optimizer is SGD with a learning rate and a momentum, `u = -γ m`, `m ← ½ m + g`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RATE, MOMENTUM = 0.3, 0.5


class Rounds(NamedTuple):
    """Of each update: its step, the mixing matrix, and who receives from whom."""

    steps: list[int]
    mixing: list[np.ndarray]  # [W, W]
    receives: list[np.ndarray]  # bool [W, W]: [i, k] where i receives from k


Oracle = Callable[[np.ndarray, np.ndarray, Rounds], np.ndarray]


class Sgd:
    """The local optimizer of all workers."""

    def __init__(self):
        self.buffer = 0.0

    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        self.buffer = MOMENTUM * self.buffer + gradient
        return -RATE * self.buffer


def mean(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x.mean(axis=0), x.shape)


def stepwise(step: Callable[..., np.ndarray]) -> Oracle:
    """An oracle of a step (x, u, t, W_t, receives_t), whose state is the function's own."""

    def oracle(x: np.ndarray, gradients: np.ndarray, rounds: Rounds) -> np.ndarray:
        local, found = Sgd(), []
        for g, t, mixing, receives in zip(gradients, *rounds, strict=True):
            x = step(x, local(g), t, mixing, receives)
            found.append(x)
        return np.array(found)

    return oracle


def shares(receives: np.ndarray) -> np.ndarray:
    """P: column k says what becomes of what k holds."""
    out = receives.sum(axis=0)
    return (receives + np.eye(len(receives))) / (1 + out)


def push_sum(x, gradients, rounds):
    local, held, weight, found = Sgd(), x, np.ones(len(x)), []
    for g, receives in zip(gradients, rounds.receives, strict=True):
        held = shares(receives) @ (held + local(g))
        weight = shares(receives) @ weight
        found.append(held / weight[:, None])
    return np.array(found)


def gosgd(x, gradients, rounds):
    local, weight, found = Sgd(), np.full(len(x), 1 / len(x)), []
    for g, receives in zip(gradients, rounds.receives, strict=True):
        x = x + local(g)
        held = shares(receives) @ (weight[:, None] * x)
        weight = shares(receives) @ weight
        x = held / weight[:, None]
        found.append(x)
    return np.array(found)


def overlap_push_sum(x, gradients, rounds):
    """Algorithm 2 of SGP's paper with τ = 1: a sender keeps its share, what it gave is on its way."""
    local, held, weight, found = Sgd(), x, np.ones(len(x)), []
    on_its_way, its_weight = np.zeros_like(x), np.zeros(len(x))
    for g, receives in zip(gradients, rounds.receives, strict=True):
        p = shares(receives)
        kept = np.diag(p)
        sent = (p - np.diag(kept)) @ held, (p - np.diag(kept)) @ weight
        held = kept[:, None] * held + on_its_way + local(g)
        weight = kept * weight + its_weight
        on_its_way, its_weight = sent
        found.append(held / weight[:, None])
    return np.array(found)


def late_mixing(x, gradients, rounds):
    """Mixing with what neighbours were an update ago."""
    local, found, before, mixing_before = Sgd(), [], x, np.eye(len(x))
    for g, mixing in zip(gradients, rounds.mixing, strict=True):
        others = mixing_before - np.diag(np.diag(mixing_before))
        away = others @ before - others.sum(axis=1, keepdims=True) * x
        before, mixing_before = x, mixing
        x = x + local(g) + away
        found.append(x)
    return np.array(found)


def dpsgd_atc(x, gradients, rounds):
    return stepwise(lambda x, u, t, mixing, receives: mixing @ (x + u))(x, gradients, rounds)


def local_sgd(period):
    return stepwise(lambda x, u, t, *_: mean(x + u) if t % period == 0 else x + u)


def post_local_sgd(start, period):
    def oracle(x, gradients, rounds):
        local, found = Sgd(), []
        for g, t in zip(gradients, rounds.steps, strict=True):
            x = x + local(mean(g) if t <= start else g)
            if t > start and t % period == 0:
                x = mean(x)
            found.append(x)
        return np.array(found)

    return oracle


def gossip_pga(period):
    return stepwise(lambda x, u, t, mixing, _: mean(x + u) if t % period == 0 else mixing @ (x + u))


def diloco(rate, momentum, period):
    def oracle(x, gradients, rounds):
        slow, v = x[0], 0.0

        def step(x, u, t, *_):
            nonlocal slow, v
            x = x + u
            if t % period:
                return x
            away = slow - x.mean(axis=0)
            v = momentum * v + away
            slow = slow - rate * (away + momentum * v)
            return np.broadcast_to(slow, x.shape)

        return stepwise(step)(x, gradients, rounds)

    return oracle


def slowmo(beta, alpha, gamma, period):
    """In the paper's units; `gamma` is the learning rate of an update, counted from 0."""

    def oracle(x, gradients, rounds):
        slow, v = x[0], 0.0

        def step(x, u, t, *_):
            nonlocal slow, v
            x = x + u
            if t % period:
                return x
            now = gamma(t - 1)
            v = beta * v + ((slow - x.mean(axis=0)) / now if now else 0)
            slow = slow - alpha * now * v
            return np.broadcast_to(slow, x.shape)

        return stepwise(step)(x, gradients, rounds)

    return oracle


def streaming_diloco(rate, momentum, period, fragments, delay, merge):
    """`fragments` is a list of slices, one for each fragment."""

    def oracle(x, gradients, rounds):
        slow, v, waiting = x[0].copy(), np.zeros(x.shape[1]), {}
        turn = period // len(fragments)

        def step(x, u, t, *_):
            x = x + u
            if t % turn == 0:
                number = (t % period) // turn
                waiting[t + delay] = (
                    number,
                    slow[fragments[number]] - x[:, fragments[number]].mean(axis=0),
                )
            if t in waiting:
                number, away = waiting.pop(t)
                which = fragments[number]
                v[which] = momentum * v[which] + away
                slow[which] -= rate * (away + momentum * v[which])
                x[:, which] = merge * x[:, which] + (1 - merge) * slow[which]
            return x

        return stepwise(step)(x, gradients, rounds)

    return oracle


def noloco(a, b, c, period):
    def oracle(x, gradients, rounds):
        slow, move = x, np.zeros_like(x)

        def step(x, u, t, mixing, _):
            nonlocal slow, move
            x = x + u
            if t % period:
                return x
            move = a * move + b * (mixing @ (x - slow)) + c * (mixing @ slow - slow)
            slow = slow + move
            return slow

        return stepwise(step)(x, gradients, rounds)

    return oracle


def sparse_loco(compress, period, beta, alpha):
    def oracle(x, gradients, rounds):
        slow, error = x[0], np.zeros_like(x)

        def step(x, u, t, *_):
            nonlocal slow, error
            x = x + u
            if t % period:
                return x
            error = beta * error + slow - x
            sent = np.array([compress(row) for row in error])
            error = error - sent
            slow = slow - alpha * sent.mean(axis=0)
            return np.broadcast_to(slow, x.shape)

        return stepwise(step)(x, gradients, rounds)

    return oracle


def quasi_global_momentum(beta, mu, nesterov):
    """In the paper's units: gradients -u / γ, with the constant γ = 1."""

    def oracle(x, gradients, rounds):
        held = np.zeros_like(x)

        def step(x, u, t, mixing, _):
            nonlocal held
            g = -u
            now = beta * held + g
            new = mixing @ (x - (g + beta * now if nesterov else now))
            held = mu * held + (1 - mu) * (x - new)
            return new

        return stepwise(step)(x, gradients, rounds)

    return oracle


def gradient_tracking_of_updates(x, gradients, rounds):
    """y_0 = u_0, y_t+1 = W y_t + u_t+1 - u_t, and θ_t+1 = W (θ_t + y_t)."""
    local, found, y, before, mixing_before = Sgd(), [], None, None, None
    for g, mixing in zip(gradients, rounds.mixing, strict=True):
        u = local(g)
        y = u if y is None else mixing_before @ y + u - before
        x = mixing @ (x + y)
        before, mixing_before = u, mixing
        found.append(x)
    return np.array(found)


def gradient_tracking_of_gradients(x, gradients, rounds):
    local, found, y, before, mixing_before = Sgd(), [], None, None, None
    for g, mixing in zip(gradients, rounds.mixing, strict=True):
        y = g if y is None else mixing_before @ y + g - before
        x = mixing @ (x + local(y))
        before, mixing_before = g, mixing
        found.append(x)
    return np.array(found)


def exact_diffusion(is_half):
    """D²: θ_t+1 = W (2 θ_t - θ_t-1 + u_t - u_t-1), with (I + W) / 2 for exact diffusion."""

    def oracle(x, gradients, rounds):
        local, found, before = Sgd(), [], None
        for g, mixing in zip(gradients, rounds.mixing, strict=True):
            w, u = (np.eye(len(x)) + mixing) / 2 if is_half else mixing, local(g)
            point = x + u if before is None else 2 * x - before[0] + u - before[1]
            before = x, u
            x = w @ point
            found.append(x)
        return np.array(found)

    return oracle


def choco(compress, gamma):
    """With s_i = Σ_k w_ik x_k, as the papers keep it."""

    def oracle(x, gradients, rounds):
        public, sums = np.zeros_like(x), np.zeros_like(x)

        def step(x, u, t, mixing, receives):
            nonlocal public, sums
            x = x + u
            if not receives.any():
                return x
            q = np.array([compress(row) for row in x - public])
            public = public + q
            sums = sums + mixing @ q
            return x + gamma * (sums - public)

        return stepwise(step)(x, gradients, rounds)

    return oracle


def staggered_easgd(alpha, period):
    def oracle(x, gradients, rounds):
        centre = x[0]

        def step(x, u, t, *_):
            nonlocal centre
            away = np.zeros_like(x)
            for i in range(len(x)):
                if len(x) > 1 and (t + i * period // len(x)) % period == 0:
                    away[i] = alpha * (x[i] - centre)
            centre = centre + away.sum(axis=0)
            return x + u - away

        return stepwise(step)(x, gradients, rounds)

    return oracle


def eamsgd(alpha, period):
    """v ← δ v - γ g; in the form whose parameters stand where the gradient is taken, x + δ v."""

    def oracle(x, gradients, rounds):
        centre, v, found = x[0], np.zeros_like(x), []
        for g, t in zip(gradients, rounds.steps, strict=True):
            v = MOMENTUM * v - RATE * g
            new = x + MOMENTUM * v - RATE * g
            if t % period == 0 and len(x) > 1:
                away = alpha * (x - centre)
                new, centre = new - away, centre + away.sum(axis=0)
            x = new
            found.append(x)
        return np.array(found)

    return oracle


def top_k(count):
    """The entries of largest magnitude."""

    def compress(row: np.ndarray) -> np.ndarray:
        kept = np.argsort(-np.abs(row), kind="stable")[:count]
        found = np.zeros_like(row)
        found[kept] = row[kept]
        return found

    return compress


def sign(row: np.ndarray) -> np.ndarray:
    return np.where(row >= 0, 1, -1) * np.abs(row).mean()
