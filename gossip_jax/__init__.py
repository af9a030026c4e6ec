"""Decentralised training in JAX: gossip protocols as optax gradient transformations."""

from gossip_jax import absence, health, keys, metrics, protocols, spec, traffic, training
from gossip_jax.draws import Draw, pairing, uniform_peers
from gossip_jax.protocols.all_reduce import all_reduce
from gossip_jax.protocols.elastic_averaging import ElasticAveragingState, elastic_averaging
from gossip_jax.protocols.elastic_gossip import elastic_gossip
from gossip_jax.protocols.gossiping_sgd import gossiping_sgd
from gossip_jax.protocols.no_communication import no_communication
from gossip_jax.rounds import Round, in_contact, initiated
from gossip_jax.workers import Placement, place

__version__ = "0.1.0"

__all__ = [
    "Draw",
    "ElasticAveragingState",
    "Placement",
    "Round",
    "absence",
    "all_reduce",
    "elastic_averaging",
    "elastic_gossip",
    "gossiping_sgd",
    "health",
    "in_contact",
    "initiated",
    "keys",
    "metrics",
    "no_communication",
    "pairing",
    "place",
    "protocols",
    "spec",
    "traffic",
    "training",
    "uniform_peers",
]
