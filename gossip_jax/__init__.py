"""Decentralised training in JAX: gossip protocols as optax gradient transformations."""

from gossip_jax import absence, graphs, health, keys, metrics, protocols, spec, traffic, training
from gossip_jax.axis import worker_index
from gossip_jax.decentralise import DecentralisedState, decentralise
from gossip_jax.draws import Draw, at_random, every, in_turn, pairing, uniform_peers
from gossip_jax.graphs import Graph
from gossip_jax.mixing import mixing_matrix
from gossip_jax.protocols.all_reduce import all_reduce
from gossip_jax.protocols.dpsgd import dpsgd
from gossip_jax.protocols.elastic_averaging import ElasticAveragingState, elastic_averaging
from gossip_jax.protocols.elastic_gossip import elastic_gossip
from gossip_jax.protocols.gossiping_sgd import gossiping_sgd
from gossip_jax.protocols.no_communication import no_communication
from gossip_jax.rounds import Round, in_contact, initiated
from gossip_jax.stacked import stacked
from gossip_jax.workers import IdleDevicesWarning, Placement, place

__version__ = "0.1.0"

__all__ = [
    "DecentralisedState",
    "Draw",
    "ElasticAveragingState",
    "Graph",
    "IdleDevicesWarning",
    "Placement",
    "Round",
    "absence",
    "all_reduce",
    "at_random",
    "decentralise",
    "dpsgd",
    "elastic_averaging",
    "elastic_gossip",
    "every",
    "gossiping_sgd",
    "graphs",
    "health",
    "in_contact",
    "in_turn",
    "initiated",
    "keys",
    "metrics",
    "mixing_matrix",
    "no_communication",
    "pairing",
    "place",
    "protocols",
    "spec",
    "stacked",
    "traffic",
    "training",
    "uniform_peers",
    "worker_index",
]


def __dir__() -> list[str]:
    """What is public, and nothing else."""
    return sorted([*__all__, "__version__"])
