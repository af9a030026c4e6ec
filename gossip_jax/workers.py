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
      devices: the devices to use; by default all of JAX's or, where several processes work together
        (`jax.distributed`), equally many of each. vmap runs where its arguments are: have `scatter`
        and `share` put them on the first of these.

    Returns:
      A placement.

    Raises:
      ValueError: an unknown backend, W < 1, no device, more workers than devices under pmap or
        shard_map, vmap over several processes, or workers that these cannot share equally.

    Examples:
      >>> placement = place(num_workers=4, backend="vmap")
      >>> average = placement.map(lambda x: jax.lax.pmean(x, "workers"))
      >>> average(jnp.arange(4.0))
      Array([1.5, 1.5, 1.5, 1.5], dtype=float32)
    """
    num_workers = checks.at_least_one("place", "num_workers", num_workers)
    if backend not in get_args(Backend):
        raise ValueError(f"place: backend must be one of {get_args(Backend)}; got {backend!r}")
    devices = tuple(_own_devices(num_workers) if devices is None else devices)
    if not devices:
        raise ValueError("place: devices must name one device or more; got none")
    if backend == "auto":
        backend = "pmap" if len(devices) >= num_workers else "vmap"
    if backend == "vmap":
        if jax.process_count() > 1 and len({device.process_index for device in devices}) > 1:
            raise ValueError(
                f"place: vmap runs all workers on one device, and here are {jax.process_count()} "
                f"processes with {len(devices)} devices for {num_workers} workers; use pmap or "
                f"shard_map, with a device for each worker"
            )
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


def _own_devices(num_workers: int) -> list[Any]:
    """All devices; of several processes equally many of each, and no more than there are workers."""
    devices, processes = jax.devices(), jax.process_count()
    if processes == 1:
        return devices
    if num_workers % processes:
        raise ValueError(
            f"place: {processes} processes share the workers equally, so there must be a multiple of "
            f"{processes} workers; got {num_workers}"
        )
    of_process = [[d for d in devices if d.process_index == process] for process in range(processes)]
    return [device for own in of_process for device in own[: num_workers // processes]]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where W workers run. Stacked values have a leading axis of W, worker i's at index i.

    Over several processes each of them calls the same functions, with the same values in the same
    order, and holds only the parts of its own workers.
    """

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
        # Of several processes, pmap takes and returns each one's part only; it is the same program as
        # shard_map's, with all of every array, which serves instead.
        if self.backend == "pmap" and not self.has_several_processes:
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
        return self._put(tree, PartitionSpec(self.axis_name))

    def share(self, tree: Any) -> Any:
        """Puts a copy of values that all workers share on every device."""
        return self._put(tree, PartitionSpec())

    def gather(self, tree: Any) -> Any:
        """Every worker's part of stacked values, as NumPy arrays [W, ...], in every process."""
        return jax.device_get(self.share(tree) if self.has_several_processes else tree)

    def _put(self, tree: Any, spec: PartitionSpec) -> Any:
        if self.backend == "vmap":
            return jax.device_put(tree, SingleDeviceSharding(self.devices[0]))
        sharding = NamedSharding(self._mesh, spec)
        if self.has_several_processes:
            return jax.tree.map(lambda leaf: _put_own_part(leaf, sharding), tree)
        return jax.device_put(tree, sharding)

    @property
    def has_several_processes(self) -> bool:
        """Whether the workers are divided among processes of `jax.distributed`."""
        return len({device.process_index for device in self.devices}) > 1

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), (self.axis_name,), axis_types=(AxisType.Auto,))


def _put_own_part(leaf: Any, sharding: NamedSharding) -> Any:
    """What a sharding gives to the devices of this process.

    `jax.device_put` would send all of it to every process first, to see whether it is the same there.
    """
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _put_own_part(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


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
