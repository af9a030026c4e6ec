"""The pairs of W workers, split into perfect matchings (a 1-factorisation of K_W)."""

import functools

import numpy as np
from jax import Array


@functools.cache
def matchings(num_workers: int) -> np.ndarray:
    """Splits all pairs of workers into as few matchings as possible.

    The circle method: worker W - 1 stands in the middle of a circle of the others, round r pairs it
    with worker r, and the others with their mirror image. For an odd W a phantom takes the middle,
    and whoever meets it sits out.

    Args:
      num_workers: W, 1 or more.

    Returns:
      int [M, W], read-only: row m is an involution, its entry i the partner of worker i in matching m,
      or i itself where it sits out. Every pair of workers is in exactly one row. M is W - 1 for an
      even W, W for an odd one above 1, and 0 for W = 1.
    """
    if num_workers == 1:
        return _read_only(np.zeros((0, 1), int))
    circle = num_workers - 1 if num_workers % 2 == 0 else num_workers
    rows, workers = np.arange(circle)[:, None], np.arange(circle)
    partner = (2 * rows - workers) % circle  # the mirror image of a worker in row r
    if circle < num_workers:
        middle = np.full((circle, 1), num_workers - 1)
        partner = np.where(partner == workers, middle, partner)
        partner = np.concatenate([partner, rows], axis=1)
    return _read_only(partner)


@functools.cache
def exchanges(num_workers: int) -> tuple[np.ndarray, np.ndarray]:
    """The exchanges that every round is made of: all matchings, and each pair of one by itself.

    Args:
      num_workers: W, 2 or more.

    Returns:
      int [E, W], the partner of each worker in each exchange, as in `matchings`; and int [E], the
      number of the matching that an exchange is a part of, which is its own number, where it is one.
      A matching of one pair is there once.
    """
    workers, whole = np.arange(num_workers), matchings(num_workers)
    partner, matching = [*whole], [*range(len(whole))]
    for index, row in enumerate(whole):
        within = pairs(row)
        for pair in within if len(within) > 1 else []:
            partner.append(np.where(np.isin(workers, pair), row, workers))
            matching.append(index)
    return _read_only(np.stack(partner)), _read_only(np.array(matching))


def pairs(partner: np.ndarray) -> list[tuple[int, int]]:
    """The pairs of one matching or exchange, int [W]: each once, the lower worker first."""
    return [(one, other) for one, other in enumerate(partner.tolist()) if one < other]


def used(contact: Array) -> Array:
    """Which of the `exchanges` make up a round; each pair in contact is in one of them.

    A matching that is in contact as a whole is one, and its pairs by themselves then are not.

    Args:
      contact: bool [W, W], symmetric, false on the diagonal.

    Returns:
      bool [E].
    """
    partner, matching = exchanges(contact.shape[0])
    workers, own = np.arange(contact.shape[0]), np.arange(len(matching))
    is_in_contact = (contact[workers, partner] | (partner == workers)).all(axis=1)
    return is_in_contact & ((matching == own) | ~is_in_contact[matching])


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
