"""What a protocol is run with: the local optimizer, and the law of its rounds."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optax
from jax import Array

import gossip_jax as gj
from experiments.training.config import Config, ProtocolName
from gossip_jax.protocols import SPECS

USUAL: tuple[ProtocolName, ...] = (
    "no_communication",
    "all_reduce",
    "elastic_gossip",
    "gossiping_sgd",
    "elastic_averaging",
    "dpsgd",
    "push_sum",
    "local_sgd",
)
"""What is shown and measured where no protocols are named: to compile all takes minutes."""


def make_optimizer(
    compiled: Config, traced: Mapping[str, Array], updates_per_epoch: int
) -> optax.GradientTransformationExtraArgs:
    """SGD with Nesterov momentum, chained with the protocol.

    Args:
      compiled: the settings that are compiled in.
      traced: the protocol's options that are values of the program, by name.
      updates_per_epoch: tells after which updates the learning rate is halved.
    """
    rate = compiled.learning_rate
    if compiled.halve_after:
        after = [epoch * updates_per_epoch for epoch in compiled.halve_after]
        halvings = {update: 0.5 for update in after if update < 2**31}  # no update has a later number
        rate = optax.piecewise_constant_schedule(compiled.learning_rate, halvings)
    sgd = optax.sgd(rate, momentum=compiled.momentum, nesterov=True)
    return compiled.spec.join(sgd, **traced, **compiled.options(compiled.spec.compiled))


def make_draw(config: Config) -> gj.Draw:
    """The law of the run's rounds; silent ones for a protocol that has no use for peers."""
    if not config.spec.draws_rounds:
        return gj.uniform_peers(config.workers, p=0.0)
    names = (config.peers, config.graph, config.routes)
    return _draw(config.workers, config.p, config.period, *names)


def depend_on_p(config: Config) -> bool:
    """Whether p makes a difference to the run's rounds."""
    often, seldom = (dataclasses.replace(config, p=p) for p in (1.0, 0.5))
    return not np.array_equal(
        make_draw(often).route_probability(), make_draw(seldom).route_probability()
    )


@functools.cache  # so that what is compiled for a law of rounds serves every seed
def _draw(
    num_workers: int, p: float, period: int, peers: str | None, graph: str, routes: str | None
) -> gj.Draw:
    if peers != "graph":
        draw = gj.pairing if peers == "pairing" else gj.uniform_peers
        return draw(num_workers, p, period)
    made = make_graph(graph, num_workers)
    match routes or ("in_turn" if graph == "base" else "every"):
        case "in_turn":
            return gj.in_turn(made, period)
        case "at_random":
            return gj.at_random(made, p, period)
        case "matcha":
            found = gj.graphs.matcha(_of_matchings(made), p)
            return gj.independently(found.graph, found.probabilities, period)
        case _:
            return gj.every(made, period)


def make_graph(name: str, num_workers: int) -> gj.Graph:
    """The graph of a name; a torus as square as W allows.

    Raises:
      ValueError: there is no such graph of W workers.
    """
    if name == "torus":
        rows = max(r for r in range(1, math.isqrt(num_workers) + 1) if num_workers % r == 0)
        return gj.graphs.torus(rows, num_workers // rows)
    return getattr(gj.graphs, name)(num_workers)


def _of_matchings(graph: gj.Graph) -> gj.Graph:
    """The same neighbours, with matchings as routes."""
    edges = {frozenset(pair) for route in range(graph.num_routes) for pair in graph.pairs(route)}
    return gj.graphs.from_edges(graph.num_workers, sorted(map(sorted, edges)))


def as_often(protocol: str, p: float) -> dict[str, Any]:
    """The settings with which a protocol communicates about as often as with this probability."""
    spec = SPECS[protocol]
    period = {"period": round(1 / p)}
    if spec.rounds == "graph":
        often = {"p": p, "peers": "graph", "graph": "exponential", "routes": "at_random"}
    elif spec.rounds == "peers":
        often = {"p": p}
    elif spec.is_of_every_update or (spec.rounds == "none" and "period" not in spec.compiled):
        often = {}
    else:
        often = period
    if "fragments" in spec.compiled:  # which divides the period
        often["fragments"] = math.gcd(4, round(1 / p))
    return {"protocol": protocol} | often
