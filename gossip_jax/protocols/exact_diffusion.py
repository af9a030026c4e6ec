"""Exact diffusion (Yuan et al., 2019, https://arxiv.org/abs/1702.05122), and D² (Tang et al., 2018,
https://arxiv.org/abs/1803.07068), its other weights.

θ'_i = Σ_k w̄_ik (θ_k + u_k + c_k),    c_i ← θ'_i - θ_i - u_i,    w̄ = (I + w) / 2, or w for D²
"""

import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from gossip_jax import exchange
from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.measures import mixing_matrix_of
from gossip_jax.mixing import graph_weights
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.spec import Option, Spec
from gossip_jax.traffic import counted_routes

Weights = Literal["half", "whole"]


class DiffusionState(NamedTuple):
    """What mixing took a worker away from its own update, the last time; the sum over workers is 0."""

    correction: Any  # as the parameters


def exact_diffusion(
    weights: Weights = "half", axis_name: str = "workers"
) -> optax.GradientTransformationExtraArgs:
    """Exact diffusion: D-PSGD without its bias, in one message, on a graph that stays the same.

    `θ' = Σ_k w̄_ik (θ_k + u_k + c_k)`, `c ← θ' - θ - u`: what mixing has changed is carried over to the
    next update. The sum of c over workers stays 0, and with unequal data workers come to the optimum
    at a constant step size. With the weights w̄ = (I + w) / 2 ("half") it is exact diffusion, also
    known as NIDS, for any symmetric w; with w̄ = w ("whole") it is D², whose w must have no eigenvalue
    of -1/3 or below: a ring of an even number of workers has one.

    It is right only for symmetric weights that never change, at every update: a round in which nobody
    talks, or one worker is away, makes it diverge.

    Args:
      weights: "half" or "whole".
      axis_name: the worker axis.

    Returns:
      A transformation whose state is a `DiffusionState`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`, from `gj.every(graph)`. Start all replicas equal.

    Raises:
      ValueError: `weights` is none of these; in `update`, `params` or `round` is missing, the round is
        of another W than the axis, its graph may change, or has weights that are not symmetric or, for
        "whole", an eigenvalue too low.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), exact_diffusion())

    References:
      Yuan, Ying, Zhao, Sayed, *Exact Diffusion for Distributed Optimization and Learning*, 2019
      (https://arxiv.org/abs/1702.05122); Tang, Lian, Yan, Zhang, Liu, *D²: Decentralized Training over
      Decentralized Data*, 2018 (https://arxiv.org/abs/1803.07068)
    """
    own = "exact_diffusion"
    if weights not in get_args(Weights):
        raise ValueError(f"{own}: weights must be 'half' or 'whole'; got {weights!r}")

    def init(params: Any) -> DiffusionState:
        return DiffusionState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(own, params, round, axis_name)
        _arguments.require_fixed(own, round, may_be_silent=False)
        _check(round.graph, weights)
        of_graph = graph_weights(round) / (2 if weights == "half" else 1)
        given = jax.tree.map(_as, updates, params)
        directions = jax.tree.map(jnp.add, given, state.correction)
        point = jax.tree.map(jnp.add, params, directions)
        moves = exchange.mix(directions, point, round, of_graph, axis_name)
        correction = jax.tree.map(jnp.subtract, moves, given)
        return jax.tree.map(_as, moves, updates), DiffusionState(correction)

    return Protocol(init, update, "after", axis_name)


def _as(value: Array, like: Array) -> Array:
    return value.astype(like.dtype)


@functools.cache
def _check(graph: Graph, weights: str) -> None:
    """Raises ValueError unless the weights of a graph are such that workers come to the optimum."""
    matrix = mixing_matrix_of(graph, graph.weights)
    if not np.allclose(matrix, matrix.T):
        raise ValueError(
            f"exact_diffusion: the weights of {graph.name} are not symmetric; use an undirected graph, "
            f"or gradient_tracking"
        )
    lowest = np.linalg.eigvalsh(matrix).min()
    if weights == "whole" and lowest <= -1 / 3 + 1e-9:
        raise ValueError(
            f"exact_diffusion: with weights='whole' (D²) the mixing matrix must have no eigenvalue of "
            f"-1/3 or below, and that of {graph.name} has {lowest:.4f}; use weights='half'"
        )


SPEC = Spec(
    factory=exact_diffusion,
    label="exact diffusion",
    short="ED",
    summary="neighbours mix, and what that changes is carried over, so that no bias is left",
    color="slateblue",
    line="--",
    rounds="fixed graph",
    is_of_every_update=True,
    traffic=lambda rounds, params, weights: counted_routes(rounds, params),
    options=(
        Option(
            name="weights",
            kind=Weights,
            help="Half of the graph's weights (exact diffusion), or the whole of them (D²).",
            default="half",
        ),
    ),
)
