"""How the routes of a graph run over devices that hold several of the workers each."""

import functools
from typing import NamedTuple

import numpy as np

from gossip_jax.graphs._graph import Graph


class Ways(NamedTuple):
    """What brings each worker what its source on a route sent: look-ups on a device, and hops.

    A hop is one permutation of the devices, in which each sends the replica of one of its workers, at
    most. All routes have as many hops, H; those that a route does not need are empty.
    """

    local: np.ndarray  # int [E, W]: the replica that is a worker's source on its device, or its own
    sent: np.ndarray  # int [E, H, D]: which of its replicas a device sends
    taken: np.ndarray  # int [E, H, D]: which of its replicas takes what arrives; -1 where none does
    permutations: list[list[list[tuple[int, int]]]]  # [E][H]: (source, receiver) of each message


@functools.cache
def ways(graph: Graph, num_devices: int) -> Ways:
    """How routes run over devices, of which number d holds the workers d W / D and so on.

    What one device sends to another goes in as few hops as there can be: as many as the most messages
    that a device sends on a route. What stays on a device is in no hop.
    """
    num_replicas = graph.num_workers // num_devices
    device, replica = np.divmod(np.arange(graph.num_workers, dtype=np.int32), num_replicas)
    is_local = device[graph.sources] == device
    remote = [np.flatnonzero(~local) for local in is_local]
    hop_of = [
        np.array(_colours(device[sources[workers]], device[workers], num_devices), int)
        for sources, workers in zip(graph.sources, remote, strict=True)
    ]
    shape = graph.num_routes, max((int(hops.max(initial=-1)) for hops in hop_of), default=-1) + 1
    sent, taken = np.zeros((2, *shape, num_devices), np.int32)
    taken -= 1
    permutations: list[list[list[tuple[int, int]]]] = [
        [[] for _ in range(shape[1])] for _ in range(shape[0])
    ]
    for route, (workers, hops) in enumerate(zip(remote, hop_of, strict=True)):
        sources = graph.sources[route, workers]
        sent[route, hops, device[sources]] = replica[sources]
        taken[route, hops, device[workers]] = replica[workers]
        for hop, *ends in zip(hops, device[sources].tolist(), device[workers].tolist(), strict=True):
            permutations[route][hop].append((ends[0], ends[1]))
    return Ways(np.where(is_local, replica[graph.sources], replica), sent, taken, permutations)


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
