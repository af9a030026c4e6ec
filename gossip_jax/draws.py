"""Laws of rounds: how each worker decides whether to initiate contact, and with whom."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from gossip_jax import checks
from gossip_jax.rounds import Round, as_int32


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

    def __call__(self, key: Array, step: ArrayLike) -> Round:
        """Draws the round of update `step` (counted from 1) from the run's shared key."""
        ...

    def contact_probability(self) -> np.ndarray:
        """float64 [W, W]: the probability that i and k exchange, at an update where they may."""
        ...


def uniform_peers(
    num_workers: int, p: float, period: int = 1, weights: ArrayLike | None = None
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
    return _UniformPeers(num_workers, p, period, weights)


def pairing(num_workers: int, p: float, period: int = 1) -> Draw:
    """A random perfect matching, of which each pair talks where one of the two initiates.

    At an update t with `t % period == 0` the workers are matched in pairs, every perfect matching being
    equally probable (for an odd W one worker, any with equal probability, sits out). Each worker
    initiates contact with its partner with probability p. So a worker is in at most one exchange a
    round.

    Args:
      num_workers: W, 1 or more. A single worker has nobody to talk to: its rounds are silent.
      p: the communication probability, in [0, 1].
      period: the communication period τ, 1 or more.

    Returns:
      `draw(key, step) -> Round`, which can be jitted and vmapped; `step` counts from 1.

    Raises:
      ValueError: an argument is out of range.

    Examples:
      >>> draw = pairing(num_workers=4, p=1.0)
      >>> draw(jax.random.key(0), step=1).peer
      Array([3, 2, 1, 0], dtype=int32)
    """
    return _Pairing(*_checked("pairing", num_workers, p, period))


@dataclasses.dataclass(frozen=True, eq=False)
class _IndependentCoins:
    """Each worker initiates with probability p; how the peers are drawn is up to the law."""

    num_workers: int
    p: float
    period: int

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
        return Round(jnp.where(initiates, peer, -1), step)

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

    def contact_probability(self) -> np.ndarray:
        picks = self.p * (_uniform(self.num_workers) if self.weights is None else self.weights)
        return picks + picks.T - picks * picks.T


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairing(_IndependentCoins):
    def _peers(self, key: Array) -> Array:
        order = jax.random.permutation(key, self.num_workers)
        neighbour = np.arange(self.num_workers) ^ 1  # in order, the pairs are 0-1, 2-3, ...
        if self.num_workers % 2 == 1:
            neighbour[-1] = self.num_workers - 1  # the last in order sits out
        return jnp.zeros_like(order).at[order].set(order[neighbour])

    def contact_probability(self) -> np.ndarray:
        matched = _uniform(self.num_workers)
        if self.num_workers % 2 == 1:
            matched *= (self.num_workers - 1) / self.num_workers
        return matched * (1 - (1 - self.p) ** 2)


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
