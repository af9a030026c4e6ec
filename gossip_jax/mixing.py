"""The weights that workers give to what they receive in a round."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from gossip_jax.rounds import Round, in_contact


def mixing_matrix(round: Round) -> Float[Array, "... W W"]:
    """What a round does with the weights of its graph: stacked parameters x become `mixing_matrix @ x`.

    Args:
      round: a round, or stacked rounds. In a round of peers, two workers in contact give each other
        1 / (1 + max(d_i, d_k)), with d the number of contacts of each (Metropolis-Hastings).

    Returns:
      float [..., W, W]; row i holds what worker i gives to each, itself included. Rows sum to 1.

    Examples:
      >>> mixing_matrix(Round(peer=[1, -1, -1]))
      Array([[0.5, 0.5, 0. ],
             [0.5, 0.5, 0. ],
             [0. , 0. , 1. ]], dtype=float32)
    """
    if jnp.ndim(round.step):
        return jax.vmap(mixing_matrix)(round)
    weights = graph_weights(round)
    sources, num_workers = round.graph.sources, round.num_workers
    into = np.broadcast_to(np.arange(num_workers), sources.shape)
    own = jnp.diag(1 - weights.sum(axis=0))
    return own.at[into, sources].add(weights)


def graph_weights(round: Round) -> Float[Array, "E W"]:
    """The weight that each worker gives to what it receives on each route: float [E, W].

    In a round of routes they are the graph's: `turn_weights` where the routes in use are of one turn,
    else `weights`. In a round of peers they are those of Metropolis-Hastings on the contacts.
    """
    graph = round.graph
    if round.peer is not None:
        contact = in_contact(round)
        degree = contact.sum(axis=1)
        more = jnp.maximum(degree[:, None], degree[None, :])
        return by_route(round, jnp.where(contact, 1 / (1 + more).astype(float), 0))
    is_turn = np.arange(graph.num_turns)[:, None] == graph.turns[None, :]
    turns = (is_turn & jnp.broadcast_to(round.routes, is_turn.shape)).any(axis=1).sum()
    alone, together = jnp.asarray(graph.turn_weights, float), jnp.asarray(graph.weights, float)
    return jnp.where(received(round), jnp.where(turns == 1, alone, together), 0)


def received(round: Round) -> Bool[Array, "E W"]:
    """On which routes each worker receives from another one in a round of routes: bool [E, W]."""
    graph = round.graph
    there = jnp.broadcast_to(round.routes[:, None], graph.sources.shape) & graph.receives
    if round.away is None:
        return there
    return there & ~(jnp.broadcast_to(round.away, there.shape) | round.away[graph.sources])


def by_route(round: Round, matrix: Array) -> Array:
    """Values [W, W] of each worker and its peer, as [E, W]: by the route on which it hears from it."""
    graph = round.graph
    into = np.broadcast_to(np.arange(graph.num_workers), graph.sources.shape)
    return jnp.where(graph.carries, matrix[into, graph.sources], jnp.zeros((), matrix.dtype))


def both_ways(owner: str, round: Round) -> Round:
    """The round in which every message is answered: with a route in use, so is its inverse.

    Raises:
      ValueError: the graph is directed.
    """
    inverse = round.graph.inverse
    if round.peer is not None:
        return round
    if inverse is None:
        raise ValueError(
            f"{owner}: two workers in contact both move, so every route needs one that goes the other "
            f"way; {round.graph.name} is directed. Use an undirected graph, or a protocol for directed "
            f"ones, such as dpsgd"
        )
    if (inverse == np.arange(len(inverse))).all():
        return round
    numbers, most = round.num_routes, round.graph.num_routes
    if min(numbers) < most:
        numbers = range(min(numbers), min(2 * max(numbers), most) + 1)
    return round.replace(routes=round.routes | round.routes[..., inverse], num_routes=numbers)
