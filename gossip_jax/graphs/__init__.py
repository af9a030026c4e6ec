"""Who can send to whom: graphs, a file for each family, and what is measured of them."""

from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.base import base
from gossip_jax.graphs.complete import complete
from gossip_jax.graphs.edges import chain, from_edges, star
from gossip_jax.graphs.exponential import exponential
from gossip_jax.graphs.hypercube import hypercube
from gossip_jax.graphs.matcha import matcha
from gossip_jax.graphs.measures import messages_per_worker, rounds_to_consensus, spectral_gap
from gossip_jax.graphs.ring import ring, torus

__all__ = [
    "Graph",
    "base",
    "chain",
    "complete",
    "exponential",
    "from_edges",
    "hypercube",
    "matcha",
    "messages_per_worker",
    "ring",
    "rounds_to_consensus",
    "spectral_gap",
    "star",
    "torus",
]
