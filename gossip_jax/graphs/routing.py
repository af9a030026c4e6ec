"""How the routes of a graph run over devices that hold several of the workers each."""

import functools
from typing import NamedTuple

import numpy as np

from gossip_jax.graphs._graph import Graph


class Hop(NamedTuple):
    """One permutation of devices, in which each sends the replica of one of its workers, at most."""

    permutation: tuple[tuple[int, int], ...]  # (source, receiver)
    sent: np.ndarray  # int [D]: which of its replicas a device sends
    taken: np.ndarray  # int [D]: which of its replicas takes what arrives; -1 where nothing does


class Way(NamedTuple):
    """What brings each worker what its source on a route sent."""

    local: np.ndarray  # int [W]: the replica that is a worker's source on its own device, or its own
    hops: tuple[Hop, ...]


@functools.cache
def way(graph: Graph, route: int, num_devices: int) -> Way:
    """How a route runs over devices, of which number d holds the workers d W / D and so on.

    What one device sends to another goes in as few hops as there can be: as many as the most messages
    that a device sends. What stays on a device is in no hop.
    """
    sources = graph.sources[route]
    num_replicas = graph.num_workers // num_devices
    device, replica = np.divmod(np.arange(graph.num_workers), num_replicas)
    is_local = device[sources] == device
    remote = np.flatnonzero(~is_local)
    number = _colours(device[sources[remote]], device[remote], num_devices)
    hops = []
    for hop in range(max(number, default=-1) + 1):
        workers = remote[np.array(number) == hop]
        sent, taken = np.zeros(num_devices, int), np.full(num_devices, -1)
        sent[device[sources[workers]]] = replica[sources[workers]]
        taken[device[workers]] = replica[workers]
        ends = sorted(zip(device[sources[workers]].tolist(), device[workers].tolist(), strict=True))
        hops.append(Hop(tuple(ends), sent, taken))
    return Way(np.where(is_local, replica[sources], replica), tuple(hops))


def _colours(sources: np.ndarray, receivers: np.ndarray, num_devices: int) -> list[int]:
    """A number for each message, such that those of one sender differ, and those of one receiver.

    By König's theorem no more numbers are needed than a device sends or receives messages.
    """
    colours: list[int] = []
    ends = [*zip(sources.tolist(), (num_devices + receivers).tolist(), strict=True)]
    at: list[dict[int, int]] = [{} for _ in range(2 * num_devices)]  # of an end, colour -> message
    for message, (one, other) in enumerate(ends):
        free = [next(c for c in range(len(ends)) if c not in at[end]) for end in (one, other)]
        mine, theirs = free
        end, colour, path = other, mine, []  # of messages in the two colours, from the receiver on
        while colour in at[end]:
            path.append(at[end][colour])
            end = sum(ends[path[-1]]) - end
            colour = mine + theirs - colour
        for crossed in path:
            for end in ends[crossed]:
                at[end].pop(colours[crossed])
        for crossed in path:
            colours[crossed] = mine + theirs - colours[crossed]
        for crossed in path:
            for end in ends[crossed]:
                at[end][colours[crossed]] = crossed
        colours.append(mine)
        at[one][mine] = at[other][mine] = message
    return colours
