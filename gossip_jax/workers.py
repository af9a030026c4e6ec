"""Placing a one-worker function on devices: `pmap`, `vmap` or `shard_map`."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from gossip_jax import checks

Backend = Literal["auto", "pmap", "vmap", "shard_map"]


def place(
    num_workers: int,
    backend: Backend = "auto",
    axis_name: str = "workers",
    devices: Sequence[Any] | None = None,
) -> "Placement":
    """Decides where the workers run.

    Args:
      num_workers: W, 1 or more.
      backend: "pmap", one replica a device; "vmap", all on one device; "shard_map", one replica a
        device of a mesh; "auto", pmap where there are enough devices, else vmap.
      axis_name: the worker axis that functions placed here run under.
      devices: the devices to use; all of JAX's by default. vmap runs where its arguments are: have
        `scatter` and `share` put them on the first of these.

    Returns:
      A placement.

    Raises:
      ValueError: an unknown backend, W < 1, no device, or more workers than devices under pmap or
        shard_map.

    Examples:
      >>> placement = place(num_workers=4, backend="vmap")
      >>> average = placement.map(lambda x: jax.lax.pmean(x, "workers"))
      >>> average(jnp.arange(4.0))
      Array([1.5, 1.5, 1.5, 1.5], dtype=float32)
    """
    num_workers = checks.at_least_one("place", "num_workers", num_workers)
    if backend not in get_args(Backend):
        raise ValueError(f"place: backend must be one of {get_args(Backend)}; got {backend!r}")
    devices = tuple(jax.devices() if devices is None else devices)
    if not devices:
        raise ValueError("place: devices must name one device or more; got none")
    if backend == "auto":
        backend = "pmap" if len(devices) >= num_workers else "vmap"
    if backend == "vmap":
        return Placement(num_workers, backend, axis_name, devices[:1])
    if len(devices) < num_workers:
        raise ValueError(
            f"place: {backend} puts one worker on each device, but there are {num_workers} workers and "
            f"{len(devices)} {devices[0].platform} device(s). Use the backend vmap, which runs all on "
            f"one device, or, to try it on CPU, make CPU devices before the first use of JAX: "
            f'jax.config.update("jax_num_cpu_devices", {num_workers}), or JAX_NUM_CPU_DEVICES='
            f"{num_workers} in the environment"
        )
    return Placement(num_workers, backend, axis_name, devices[:num_workers])


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where W workers run. Stacked values have a leading axis of W, worker i's at index i."""

    num_workers: int
    backend: Literal["pmap", "vmap", "shard_map"]
    axis_name: str
    devices: tuple[Any, ...]  # jax.Device

    def map(
        self,
        function: Callable[..., Any],
        in_axes: int | Sequence[int | None] = (0,),
        donate_argnums: int | Sequence[int] = (),
    ) -> Callable[..., Any]:
        """Compiles a function of one worker's values into one of all workers'.

        Args:
          function: runs under the worker axis, on arguments and results without it.
          in_axes: for each argument, 0 for a stacked value, of which each worker gets its own, or
            None for one that all workers share. A single 0 is for a single argument.
          donate_argnums: arguments whose buffers the results may reuse.

        Returns:
          The compiled function; all its results are stacked, [W, ...].

        Raises:
          ValueError: `in_axes` holds something other than 0 and None.
        """
        in_axes = (in_axes,) if isinstance(in_axes, int) else tuple(in_axes)
        donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
        if any(axis not in (0, None) for axis in in_axes):
            raise ValueError(f"map: in_axes must hold 0 or None for each argument; got {in_axes}")
        if self.backend == "vmap":
            mapped = jax.vmap(function, in_axes, axis_name=self.axis_name, axis_size=self.num_workers)
            return jax.jit(mapped, donate_argnums=donate)
        if self.backend == "pmap":
            return _Pmapped(self, function, in_axes, donate)

        def one_block(*arguments):
            """shard_map hands each worker a block of the stacked values, with a leading axis of 1."""
            own = [
                argument if axis is None else jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), argument)
                for argument, axis in zip(arguments, in_axes, strict=True)
            ]
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*own))

        stacked, shared = PartitionSpec(self.axis_name), PartitionSpec()
        mapped = jax.shard_map(
            one_block,
            mesh=self._mesh,
            in_specs=tuple(shared if axis is None else stacked for axis in in_axes),
            out_specs=stacked,
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=donate)

    def scatter(self, tree: Any) -> Any:
        """Puts each worker's part of stacked values [W, ...] on its device.

        As with `jax.device_put`, values that are there already are not copied: donating the result
        then takes them too.
        """
        return jax.device_put(tree, self._sharding(PartitionSpec(self.axis_name)))

    def share(self, tree: Any) -> Any:
        """Puts a copy of values that all workers share on every device."""
        return jax.device_put(tree, self._sharding(PartitionSpec()))

    def _sharding(self, spec: PartitionSpec) -> jax.sharding.Sharding:
        if self.backend == "vmap":
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self._mesh, spec)

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), (self.axis_name,), axis_types=(AxisType.Auto,))


class _Pmapped:
    """`jax.pmap`, which also takes arguments that are all shared, and any number of leaves.

    Where there happen to be as many leaves as arguments, pmap (jax 0.10 to 0.12) takes the axis of an
    argument for that of a leaf, and so maps over the wrong ones. Here axes are spelt out leaf by leaf.
    """

    def __init__(
        self,
        placement: Placement,
        function: Callable[..., Any],
        in_axes: tuple[int | None, ...],
        donate: tuple[int, ...],
    ):
        # pmap wants something to map over, also where all arguments are shared.
        is_all_shared = all(axis is None for axis in in_axes)
        self._leading = (np.arange(placement.num_workers),) if is_all_shared else ()

        @functools.cache
        def mapped(structure: Any) -> Any:
            axes = (
                None if axis is None else argument.unflatten([axis] * argument.num_leaves)
                for axis, argument in zip(in_axes, structure.children(), strict=True)
            )
            return jax.pmap(
                lambda *arguments: function(*arguments[len(self._leading) :]),
                in_axes=(0,) * len(self._leading) + tuple(axes),
                donate_argnums=tuple(len(self._leading) + index for index in donate),
                axis_name=placement.axis_name,
                devices=placement.devices,
            )

        self._mapped = mapped

    def __call__(self, *arguments: Any) -> Any:
        return self._mapped(jax.tree.structure(arguments))(*self._leading, *arguments)

    def lower(self, *arguments: Any) -> Any:
        """As of a jitted function."""
        return self._mapped(jax.tree.structure(arguments)).lower(*self._leading, *arguments)
