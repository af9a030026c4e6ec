"""Devices of CPUs in several processes talk over gloo in groups, each connected before it is needed."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Groups = tuple[tuple[int, ...], ...]
"""The devices of a program, by number, in groups that each talk among themselves."""

ALL: Groups = ()
"""All devices in one group."""


def groups(program: str, num_devices: int) -> set[Groups]:
    """All groups in which the devices of a compiled program talk.

    Args:
      program: its text, in HLO.
      num_devices: that it runs on.
    """
    found = {ALL}
    for listed in re.findall(r"replica_groups=\{(\{[\d,{} ]*\})\}", program):
        found.add(tuple(_numbers(group) for group in re.findall(r"\{([\d, ]+)\}", listed)))
    for shape, dims, order in re.findall(
        r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", program
    ):
        numbers = np.arange(num_devices).reshape(_numbers(dims))
        numbers = numbers.transpose(_numbers(order)) if order else numbers
        found.add(tuple(map(tuple, numbers.reshape(_numbers(shape)).tolist())))
    return {of for of in found if of == ALL or max(map(len, of)) > 1}


def contact(devices: Sequence[Any], groups: Sequence[Groups]) -> Callable[[], object]:
    """Compiles a program in which they talk, group by group. Every process is to call it at once."""
    mesh = Mesh(np.array(devices), ("devices",), axis_types=(AxisType.Auto,))

    def talk(x: Array) -> Array:
        for group in groups:
            # One after the other: each waits for the sum before.
            x = x + lax.psum(x, "devices", axis_index_groups=_complete(group, len(devices)) or None)
        return x

    spec = PartitionSpec("devices")
    mapped = jax.shard_map(talk, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    zeros = jax.make_array_from_callback(
        (len(devices),),
        NamedSharding(mesh, spec),
        lambda index: np.zeros(len(devices), np.float32)[index],
    )
    compiled = jax.jit(mapped).lower(zeros).compile()
    return lambda: jax.block_until_ready(compiled(zeros))


def _complete(groups: Groups, num_devices: int) -> list[list[int]]:
    """The groups, with each device that is in none in one of its own; none for all devices."""
    missing = set(range(num_devices)) - {device for group in groups for device in group}
    alone = [[device] for device in sorted(missing)] if groups else []
    return [list(group) for group in groups] + alone


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
