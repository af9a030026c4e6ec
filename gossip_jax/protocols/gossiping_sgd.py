"""Gossiping SGD (Jin et al., 2016, https://arxiv.org/abs/1611.04581).

pull:  θ_i ← θ_i + u_i - ½ (θ_i - θ_k)    for the one peer k whom i picked
push:  θ_i ← u_i + mean of θ_i and of θ_k for every k that picked i
"""

from typing import Any, Literal

import optax
from jax import Array

from gossip_jax import traffic
from gossip_jax.mixing import by_route, received
from gossip_jax.protocols._pairwise import mixing
from gossip_jax.rounds import Round, initiated
from gossip_jax.spec import WIRE_DTYPE, Option, Spec


def gossiping_sgd(
    variant: Literal["pull", "push"] = "pull", axis_name: str = "workers", wire_dtype: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Gossiping SGD: a worker averages itself with what it fetched, or with what it was sent.

    *Pull*: worker i moves by `u_i - ½ (θ_i - θ_k)` towards the one peer k that it picked; the peer
    does not move. *Push*: worker i sends θ_i to the peer that it picked; who received replicas
    this round becomes the mean of its own and all of them, plus its own `u_i`. The θ are the
    parameters before the update. Neither keeps the sum of the parameters over workers.

    In a round of peers, each contact moves one replica in each direction, as in Elastic Gossip,
    although one would do: whom many pick would have to send to all of them. In a round of routes
    replicas go one way, from the source of a route, and nobody sends back.

    Args:
      variant: "pull" or "push".
      axis_name: the worker axis.
      wire_dtype: the type of floating point that parameters are sent in, such as "bfloat16", which
        halves the bytes; their own type by default. Both sides then go by what was sent, so that
        their moves stay opposite, and replicas that agree stay as they are.

    Returns:
      A transformation without state, to go *after* the optimizer in the chain. Its `update` needs
      `params` and `round=`.

    Raises:
      ValueError: an unknown variant, or `wire_dtype` no type of floating point; in `update`, `params`
        or `round` is missing, or the round is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), gossiping_sgd("push"))

    References:
      Jin, Yuan, Iandola, Keutzer, *How to scale distributed deep learning?*, 2016
      (https://arxiv.org/abs/1611.04581)
    """
    if variant not in _WEIGHTS:
        raise ValueError(f"gossiping_sgd: variant must be 'pull' or 'push'; got {variant!r}")
    return mixing("gossiping_sgd", _WEIGHTS[variant], axis_name, wire_dtype)


def _pull(round: Round) -> tuple[Round, Array]:
    if round.peer is None:
        if max(round.num_routes) > 1:
            raise ValueError(
                f"gossiping_sgd: with 'pull' a worker fetches from one peer in a round, and rounds of "
                f"{round.graph.name} may use {max(round.num_routes)} routes at once; draw them by "
                f"at_random or in_turn, or use dpsgd"
            )
        return round, received(round).astype(float) / 2
    return round, by_route(round, initiated(round)).astype(float) / 2


def _push(round: Round) -> tuple[Round, Array]:
    sent = received(round) if round.peer is None else by_route(round, initiated(round).T)
    sent = sent.astype(float)
    return round, sent / (1 + sent.sum(axis=0, keepdims=True))


_WEIGHTS = {"pull": _pull, "push": _push}


SPEC = Spec(
    factory=gossiping_sgd,
    label="Gossiping SGD",
    short="GS",
    summary="a worker averages itself with what it fetched, or with what it was sent",
    color="tab:orange",
    line="--",
    rounds="peers",
    traffic=lambda rounds, params, variant, wire_dtype: traffic.counted_routes(
        rounds, params, wire_dtype
    ),
    options=(
        Option(
            name="variant",
            kind=Literal["pull", "push"],
            help="Whether a worker fetches its peer's parameters, or sends its own.",
            default="pull",
        ),
        WIRE_DTYPE,
    ),
    can_be_late=True,
)
