"""Decentralised training in JAX: gossip protocols as optax gradient transformations."""

from gossip_jax import (
    absence,
    compression,
    graphs,
    health,
    keys,
    metrics,
    protocols,
    spec,
    traffic,
    training,
)
from gossip_jax.axis import worker_index
from gossip_jax.decentralise import DecentralisedState, decentralise
from gossip_jax.delayed import delayed
from gossip_jax.draws import Draw, at_random, every, in_turn, independently, pairing, uniform_peers
from gossip_jax.graphs import Graph
from gossip_jax.mixing import mixing_matrix
from gossip_jax.protocols.all_reduce import all_reduce
from gossip_jax.protocols.choco import choco
from gossip_jax.protocols.diloco import diloco
from gossip_jax.protocols.dpsgd import dpsgd
from gossip_jax.protocols.elastic_averaging import ElasticAveragingState, elastic_averaging
from gossip_jax.protocols.elastic_gossip import elastic_gossip
from gossip_jax.protocols.exact_diffusion import exact_diffusion
from gossip_jax.protocols.gosgd import gosgd
from gossip_jax.protocols.gossip_pga import gossip_pga
from gossip_jax.protocols.gossiping_sgd import gossiping_sgd
from gossip_jax.protocols.gradient_tracking import gradient_tracking
from gossip_jax.protocols.local_sgd import local_sgd
from gossip_jax.protocols.no_communication import no_communication
from gossip_jax.protocols.noloco import noloco
from gossip_jax.protocols.post_local_sgd import post_local_sgd
from gossip_jax.protocols.push_sum import push_sum
from gossip_jax.protocols.quasi_global_momentum import quasi_global_momentum
from gossip_jax.protocols.slowmo import slowmo
from gossip_jax.protocols.sparse_loco import sparse_loco
from gossip_jax.protocols.streaming_diloco import streaming_diloco
from gossip_jax.rounds import Round, in_contact, initiated
from gossip_jax.stacked import stacked
from gossip_jax.workers import IdleDevicesWarning, Mapped, Placement, place

__version__ = "0.1.0"

__all__ = [
    "DecentralisedState",
    "Draw",
    "ElasticAveragingState",
    "Graph",
    "IdleDevicesWarning",
    "Mapped",
    "Placement",
    "Round",
    "absence",
    "all_reduce",
    "at_random",
    "choco",
    "compression",
    "decentralise",
    "delayed",
    "diloco",
    "dpsgd",
    "elastic_averaging",
    "elastic_gossip",
    "every",
    "exact_diffusion",
    "gosgd",
    "gossip_pga",
    "gossiping_sgd",
    "gradient_tracking",
    "graphs",
    "health",
    "in_contact",
    "in_turn",
    "independently",
    "initiated",
    "keys",
    "local_sgd",
    "metrics",
    "mixing_matrix",
    "no_communication",
    "noloco",
    "pairing",
    "place",
    "post_local_sgd",
    "protocols",
    "push_sum",
    "quasi_global_momentum",
    "slowmo",
    "sparse_loco",
    "spec",
    "stacked",
    "streaming_diloco",
    "traffic",
    "training",
    "uniform_peers",
    "worker_index",
]


def __dir__() -> list[str]:
    """What is public, and nothing else."""
    return sorted([*__all__, "__version__"])
