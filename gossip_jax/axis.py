"""The worker axis: what is bound under its name, how many workers it has, and which one this is.

W workers are D devices with R workers on each. `jax.vmap` binds an axis that is within a device,
`jax.pmap` and `jax.shard_map` one that is across devices. Where a device holds several of many workers,
`gossip_jax.place` binds one of each, with the names "workers:devices" and "workers:replicas" for
"workers"; worker d R + r is replica r of device d.
"""

from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jaxtyping import Int32

AxisName = Any
"""Of a worker axis: a name, or a tuple of names of axes that are all across devices."""


def across(axis_name: str) -> str:
    """The axis across devices, where a device holds several of the workers."""
    return f"{axis_name}:devices"


def within(axis_name: str) -> str:
    """The axis within a device, where it holds several of the workers."""
    return f"{axis_name}:replicas"


class Axis(NamedTuple):
    """A worker axis that is bound here."""

    devices: Any  # the name of the axis across devices, or names; None where all are on one device
    replicas: str | None  # the name of the axis within a device; None where a device has one worker
    num_devices: int  # D
    num_replicas: int  # R

    @property
    def size(self) -> int:
        """W."""
        return self.num_devices * self.num_replicas

    @property
    def names(self) -> Any:
        """What `jax.lax`'s collectives over all workers take."""
        names = [*(self.devices if isinstance(self.devices, tuple) else (self.devices,)), self.replicas]
        found = tuple(name for name in names if name is not None)
        return found[0] if len(found) == 1 else found

    def worker(self) -> Array:
        """Which worker this is: int32 scalar."""
        if self.replicas is None:
            return lax.axis_index(self.devices)
        replica = lax.axis_index(self.replicas)
        if self.devices is None:
            return replica
        return lax.axis_index(self.devices) * self.num_replicas + replica


def bound(axis_name: AxisName) -> Axis:
    """The worker axis of this name; ValueError where no such axis is bound."""
    if isinstance(axis_name, tuple):
        if not all(map(_is_across_devices, axis_name)):
            raise ValueError(
                f"the axes {axis_name} of workers must all be across devices (jax.pmap or "
                f"jax.shard_map); have one jax.vmap over them with one name"
            )
        return Axis(axis_name, None, _size(axis_name) or 1, 1)
    devices = next((n for n in (axis_name, across(axis_name)) if _is_across_devices(n)), None)
    replicas = next((n for n in (within(axis_name), axis_name) if _is_within_device(n)), None)
    if devices is None and replicas is None:
        raise ValueError(
            f"no worker axis named {axis_name!r} here: a protocol's update runs under jax.vmap, "
            f"jax.pmap or jax.shard_map with axis_name={axis_name!r}"
        )
    return Axis(devices, replicas, _size(devices) or 1, _size(replicas) or 1)


def worker_index(axis_name: AxisName = "workers") -> Int32[Array, ""]:
    """Which worker this is, 0 to W - 1: as `jax.lax.axis_index`, also where a device holds several.

    Args:
      axis_name: the worker axis.

    Returns:
      An int32 scalar.

    Raises:
      ValueError: there is no such axis.
    """
    return bound(axis_name).worker()


def shared(value: Any, axis_name: AxisName) -> Array:
    """A value that is equal on all workers, as one that `jax.vmap` knows to be so.

    What is decided by it stays a conditional: vmap has all branches run where each worker has a
    predicate of its own. Between devices, nothing is sent.
    """
    replicas = bound(axis_name).replicas
    return value if replicas is None else lax.pmax(value, replicas)


def _size(name: Any) -> int | None:
    try:
        return None if name is None else lax.axis_size(name)
    except NameError:
        return None


def _is_across_devices(name: str) -> bool:
    return name in jax.sharding.get_abstract_mesh().manual_axes


def _is_within_device(name: str) -> bool:
    return _size(name) is not None and not _is_across_devices(name)
