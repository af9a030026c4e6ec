"""What Elastic Gossip and Gossiping SGD share: in a round, pairs of workers exchange replicas."""

from collections.abc import Callable
from typing import Any

import optax
from jax import Array

from gossip_jax import checks, exchange
from gossip_jax.protocols import _arguments
from gossip_jax.rounds import Round, in_contact, is_known_silent, is_known_to_talk


def pairwise(
    owner: str, weights: Callable[[Round], Array], axis_name: str, wire_dtype: Any = None
) -> optax.GradientTransformationExtraArgs:
    """A protocol that adds `Σ_k weights(round)[i, k] (θ_k - θ_i)` to the update of worker i.

    The differences are taken from the parameters before the local update.

    Args:
      owner: the protocol's public name, for its error messages.
      weights: from a round to float [W, W], zero where there is no contact.
      axis_name: the worker axis.
      wire_dtype: the type that replicas are sent in; their own, where None.

    Raises:
      ValueError: `wire_dtype` is no type of floating point.
    """
    wire_dtype = checks.floating_dtype(owner, "wire_dtype", wire_dtype)

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(owner, params, round, axis_name)
        if is_known_silent(round):
            return updates, state
        mixed = exchange.mix(
            updates,
            params,
            weights(round),
            in_contact(round),
            axis_name,
            wire_dtype,
            is_known_to_talk(round),
        )
        return mixed, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
