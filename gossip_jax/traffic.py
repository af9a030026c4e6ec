"""What a run sends: expected by formula, or counted from the rounds drawn, without running it.

A pairwise protocol sends one replica in each direction at every exchange. A collective one
(All-reduce SGD, EASGD) is counted as a ring all-reduce, which sends `2 (W - 1) / W` times the
parameters from every worker; no all-reduce sends less.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gossip_jax.draws import Draw
from gossip_jax.rounds import Round, in_contact


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What was, or will be, sent. Traffic of consecutive parts of a run can be added."""

    exchanges: float  # between two workers (pairwise), or among all (collective)
    bytes_sent: np.ndarray  # float64 [W], by each worker

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.exchanges + other.exchanges, self.bytes_sent + other.bytes_sent)


def silence(num_workers: int) -> Traffic:
    """The traffic of a protocol that does not communicate."""
    return Traffic(0, np.zeros(num_workers))


def counted_pairwise(rounds: Round, params: Any, wire_dtype: Any = None) -> Traffic:
    """The traffic of a pairwise protocol over stacked rounds (or one).

    Args:
      rounds: the rounds drawn, `peer` [..., W].
      params: one worker's parameters, or their shapes and dtypes.
      wire_dtype: the type that they are sent in; their own, where None.
    """
    contact = np.asarray(in_contact(rounds)).reshape(-1, rounds.num_workers, rounds.num_workers)
    return _pairwise(contact.sum(axis=0, dtype=np.int64), params, wire_dtype)


def expected_pairwise(draw: Draw, params: Any, num_updates: int, wire_dtype: Any = None) -> Traffic:
    """The expected traffic of a pairwise protocol over updates 1 to `num_updates`."""
    contacts = draw.contact_probability() * (num_updates // draw.period)
    return _pairwise(contacts, params, wire_dtype)


def counted_collective(rounds: Round, params: Any, period: int = 1) -> Traffic:
    """The traffic of a collective protocol over stacked rounds, of which it uses the steps.

    Args:
      rounds: the rounds, `step` [...].
      params: one worker's parameters, or their shapes and dtypes.
      period: τ; the protocol communicates at the updates that it divides.
    """
    exchanges = int(np.sum(np.asarray(rounds.step) % period == 0))
    return _collective(rounds.num_workers, exchanges, params)


def expected_collective(num_workers: int, params: Any, num_updates: int, period: int = 1) -> Traffic:
    """The traffic of a collective protocol over updates 1 to `num_updates`: no chance is in it."""
    return _collective(num_workers, num_updates // period, params)


def num_bytes(params: Any, wire_dtype: Any = None) -> int:
    """The size of one replica in bytes, as it is sent."""
    return sum(
        leaf.size * jnp.dtype(leaf.dtype if wire_dtype is None else wire_dtype).itemsize
        for leaf in jax.tree.leaves(params)
    )


def _pairwise(contacts: np.ndarray, params: Any, wire_dtype: Any) -> Traffic:
    """From the number of contacts of each pair, [W, W], symmetric."""
    replica = float(num_bytes(params, wire_dtype))
    return Traffic(contacts.sum().item() / 2, contacts.sum(axis=1) * replica)


def _collective(num_workers: int, exchanges: int, params: Any) -> Traffic:
    if num_workers == 1:
        return silence(1)
    each = exchanges * 2 * (num_workers - 1) / num_workers * num_bytes(params)
    return Traffic(exchanges, np.full(num_workers, each))
