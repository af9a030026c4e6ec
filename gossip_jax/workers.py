"""Placing a one-worker function on devices: `pmap`, `vmap` or `shard_map`."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

from gossip_jax import _mapping, axis, checks

Backend = Literal["auto", "pmap", "vmap", "shard_map"]


class Mapped(Protocol):
    """A function of all workers' values, as `Placement.map` compiles it."""

    def __call__(self, *arguments: Any) -> Any:
        """The results, stacked, [W, ...]."""
        ...

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        """The program for arguments like these, as of a jitted function; `.compile()` compiles it."""
        ...


class IdleDevicesWarning(UserWarning):
    """Some devices have nothing to do, since the workers cannot be divided among all of them."""


def place(
    num_workers: int | None = None,
    backend: Backend = "auto",
    axis_name: str = "workers",
    devices: Sequence[Any] | None = None,
    mesh: Mesh | None = None,
) -> "Placement":
    """Decides where the workers run.

    Args:
      num_workers: W, 1 or more; with a `mesh`, a multiple of the size of its worker axis, which is also
        the default.
      backend: "pmap", one worker a device; "shard_map", W / D workers on each of D devices of a mesh;
        "vmap", all on one device; "auto", pmap where there are as many devices as workers, else
        shard_map on as many devices as divide W, and vmap where that is a single one.
      axis_name: the worker axis that functions placed here run under.
      devices: the devices to use; by default all of JAX's or, where several processes work together
        (`jax.distributed`), equally many of each. vmap runs where its arguments are: have `scatter`
        and `share` put them on the first of these.
      mesh: a mesh of yours with an axis `axis_name`. Its further axes are the workers' own: what a
        function does for one worker is divided over them by XLA, as its arguments and its sharding
        constraints say, so that each worker can be data-parallel or FSDP. The backend is then
        shard_map.

    Returns:
      A placement.

    Raises:
      ValueError: an unknown backend, W < 1, no device, more workers than devices under pmap, workers
        that the devices or the processes cannot share equally, vmap over several processes, or a mesh
        without the worker axis or beside `devices`.

    Warns:
      IdleDevicesWarning: `devices` is not given, and some of JAX's are left without a worker.

    Examples:
      >>> placement = place(num_workers=4, backend="vmap")
      >>> average = placement.map(lambda x: jax.lax.pmean(x, "workers"))
      >>> average(jnp.arange(4.0))
      Array([1.5, 1.5, 1.5, 1.5], dtype=float32)
    """
    if backend not in get_args(Backend):
        raise ValueError(f"place: backend must be one of {get_args(Backend)}; got {backend!r}")
    if mesh is not None:
        return _on_mesh(num_workers, backend, axis_name, devices, mesh)
    num_workers = checks.at_least_one("place", "num_workers", num_workers)
    given, devices = devices, tuple(_own_devices(num_workers) if devices is None else devices)
    if not devices:
        raise ValueError("place: devices must name one device or more; got none")
    most = max(d for d in range(1, min(num_workers, len(devices)) + 1) if num_workers % d == 0)
    if backend == "auto":
        backend = "pmap" if most == num_workers else "shard_map" if most > 1 else "vmap"
    elif backend == "vmap":
        most = len(devices) if given is None else 1  # one device is what was asked for
    if backend == "vmap" and _has_several_processes(devices):
        raise ValueError(
            f"place: vmap runs all workers on one device, and here are {jax.process_count()} "
            f"processes with {len(devices)} devices for {num_workers} workers; use pmap or "
            f"shard_map, with equally many workers on each device"
        )
    if backend == "pmap" and len(devices) < num_workers:
        raise ValueError(
            f"place: pmap puts one worker on each device, but there are {num_workers} workers and "
            f"{len(devices)} {devices[0].platform} device(s). Use the backend auto, which puts several "
            f"on each, or, to try it on CPU, make CPU devices before the first use of JAX: "
            f'jax.config.update("jax_num_cpu_devices", {num_workers}), or JAX_NUM_CPU_DEVICES='
            f"{num_workers} in the environment"
        )
    if given is None and most < len(devices):
        warnings.warn(
            f"place: {num_workers} workers can be divided among {most} of {len(devices)} devices, so "
            f"{len(devices) - most} stay idle; take a multiple of {len(devices)} workers, or "
            f"name the devices to use",
            IdleDevicesWarning,
            stacklevel=2,
        )
    if backend == "vmap":
        return Placement(num_workers, backend, axis_name, devices[:1])
    outer = axis_name if most == num_workers else axis.across(axis_name)
    mesh = Mesh(np.array(devices[:most]), (outer,), axis_types=(AxisType.Auto,))
    return Placement(num_workers, backend, axis_name, devices[:most], mesh, outer)


def _on_mesh(
    num_workers: int | None, backend: Backend, axis_name: str, devices: Any, mesh: Mesh
) -> "Placement":
    if devices is not None or backend not in ("auto", "shard_map"):
        raise ValueError(
            f"place: a mesh says which devices to use, with the backend shard_map; got devices or the "
            f"backend {backend!r} beside it"
        )
    if axis_name not in mesh.shape:
        raise ValueError(
            f"place: the mesh must have an axis {axis_name!r} for the workers; its axes are "
            f"{mesh.axis_names}"
        )
    size = mesh.shape[axis_name]
    num_workers = checks.at_least_one(
        "place", "num_workers", size if num_workers is None else num_workers
    )
    if num_workers % size:
        raise ValueError(
            f"place: the axis {axis_name!r} of the mesh has {size} devices, which share the workers "
            f"equally, so there must be a multiple of {size}; got {num_workers}"
        )
    own = tuple(np.moveaxis(mesh.devices, mesh.axis_names.index(axis_name), 0).reshape(size, -1)[:, 0])
    # Automatic axes, whatever those of the mesh are: a function of one worker need not name shardings.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return Placement(num_workers, "shard_map", axis_name, own, mesh, axis_name)


def _has_several_processes(devices: Sequence[Any]) -> bool:
    return len({device.process_index for device in devices}) > 1


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
    """One for each group of workers that are together: the first of theirs, if they are on several."""
    mesh: Mesh | None = None
    """Of these devices; None under vmap."""
    mesh_axis: str = ""
    """The axis of the mesh that the workers are divided over."""

    @property
    def workers_per_device(self) -> int:
        """R, how many workers are together on each device."""
        return self.num_workers // len(self.devices)

    @property
    def axes(self) -> Any:
        """What `jax.lax`'s own collectives over all workers take, in a function that is placed here."""
        if self.backend == "vmap" or self.workers_per_device == 1:
            return self.axis_name
        return self.mesh_axis, axis.within(self.axis_name)

    def map(
        self,
        function: Callable[..., Any],
        in_axes: int | Sequence[int | None] = (0,),
        donate_argnums: int | Sequence[int] = (),
    ) -> Mapped:
        """Compiles a function of one worker's values into one of all workers'.

        Args:
          function: runs under the worker axis, on arguments and results without it.
          in_axes: for each argument, 0 for a stacked value, of which each worker gets its own, or
            None for one that all workers share. A single 0 is for a single argument.
          donate_argnums: arguments whose buffers the results may reuse.

        Returns:
          The compiled function; all its results are stacked, [W, ...].

        Raises:
          ValueError: `in_axes` holds something other than 0 and None; when the function is called, the
            arguments do not fit it, one has a leading axis that is not W, a result is no array, or the
            function changes an nnx module whose change would be lost.
        """
        in_axes = (in_axes,) if isinstance(in_axes, int) else tuple(in_axes)
        donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
        if any(axis not in (0, None) for axis in in_axes):
            raise ValueError(f"map: in_axes must hold 0 or None for each argument; got {in_axes}")
        function = _mapping.of_worker(function)
        if self.mesh is None:
            mapped = jax.vmap(function, in_axes, axis_name=self.axis_name, axis_size=self.num_workers)
            mapped = _mapping.of_whole(mapped, in_axes, self.num_workers)
            return jax.jit(mapped, donate_argnums=donate)
        # Of several processes, pmap takes and returns each one's part only; it is the same program as
        # shard_map's, with all of every array, which serves instead.
        if self.backend == "pmap" and not self.has_several_processes:
            return _Pmapped(self, function, in_axes, donate)
        mapped = _mapping.of_whole(self._sharded(function, in_axes), in_axes, self.num_workers)
        return jax.jit(mapped, donate_argnums=donate)

    def _sharded(
        self, function: Callable[..., Any], in_axes: tuple[int | None, ...]
    ) -> Callable[..., Any]:
        """A function of one worker's values, as one of stacked ones under shard_map."""
        assert self.mesh is not None
        replicas = self.workers_per_device
        return on_blocks(function, in_axes, self.mesh, self.mesh_axis, self.axis_name, replicas)

    def scatter(self, tree: Any) -> Any:
        """Puts each worker's part of stacked values [W, ...] on its device.

        As with `jax.device_put`, values that are there already are not copied: donating the result
        then takes them too.
        """
        return self._put(tree, PartitionSpec(self.mesh_axis))

    def share(self, tree: Any) -> Any:
        """Puts a copy of values that all workers share on every device."""
        return self._put(tree, PartitionSpec())

    def replicate(self, tree: Any) -> Any:
        """Stacked values in which every worker has the same: [...] becomes [W, ...], on their devices.

        What is divided over further axes of the mesh stays so: an array that is FSDP-sharded as
        `PartitionSpec("data")` becomes one of `PartitionSpec("workers", "data")`.
        """

        def replicated(leaf: Any) -> Any:
            own = getattr(getattr(leaf, "sharding", None), "spec", ()) if self.mesh is not None else ()
            stacked = jnp.broadcast_to(leaf, (self.num_workers, *jnp.shape(leaf)))
            return self._put(stacked, PartitionSpec(self.mesh_axis, *own))

        return jax.tree.map(replicated, tree)

    def split(self, batch: Any) -> Any:
        """Divides a batch among the workers: [n, ...] becomes [W, n / W, ...], on their devices.

        Raises:
          ValueError: n is no multiple of W.
        """

        def parts(leaf: Any) -> Any:
            shape = np.shape(leaf)
            if not shape or shape[0] % self.num_workers:
                raise ValueError(
                    f"split: a batch is divided among {self.num_workers} workers along its first axis, "
                    f"which must be a multiple of {self.num_workers}; got shape {shape}"
                )
            return leaf.reshape(self.num_workers, shape[0] // self.num_workers, *shape[1:])

        return self.scatter(jax.tree.map(parts, batch))

    def gather(self, tree: Any) -> Any:
        """Every worker's part of stacked values, as NumPy arrays [W, ...], in every process."""
        return jax.device_get(self.share(tree) if self.has_several_processes else tree)

    def _put(self, tree: Any, spec: PartitionSpec) -> Any:
        if self.mesh is None:
            return jax.device_put(tree, SingleDeviceSharding(self.devices[0]))
        sharding = NamedSharding(self.mesh, spec)
        if self.has_several_processes:
            return jax.tree.map(lambda leaf: _put_own_part(leaf, sharding), tree)
        return jax.device_put(tree, sharding)

    @property
    def has_several_processes(self) -> bool:
        """Whether the workers are divided among processes of `jax.distributed`."""
        return _has_several_processes(self.devices)


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


def on_blocks(
    function: Callable[..., Any],
    in_axes: Sequence[int | None],
    mesh: Mesh | AbstractMesh,
    mesh_axis: str,
    axis_name: str,
    num_replicas: int,
) -> Callable[..., Any]:
    """A function of one worker's values, as one of stacked ones under shard_map.

    Args:
      function: of one worker, under the axis `axis_name`.
      in_axes: for each argument, 0 for a stacked value, or None for a shared one.
      mesh: what to map over.
      mesh_axis: the one of its axes that the workers are divided over; the others are left to XLA.
      axis_name: the worker axis.
      num_replicas: R, the workers in the block of a device.
    """
    if num_replicas > 1:
        of_block = jax.vmap(
            function, tuple(in_axes), axis_name=axis.within(axis_name), axis_size=num_replicas
        )
    else:

        def of_block(*arguments):
            """A block has a leading axis of 1."""
            own = [
                value if of is None else jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), value)
                for value, of in zip(arguments, in_axes, strict=True)
            ]
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*own))

    stacked, shared = PartitionSpec(mesh_axis), PartitionSpec()
    return jax.shard_map(
        of_block,
        mesh=mesh,
        axis_names={mesh_axis},
        in_specs=tuple(shared if of is None else stacked for of in in_axes),
        out_specs=stacked,
        check_vma=False,
    )


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
        self._in_axes, self._num_workers = in_axes, placement.num_workers
        is_all_shared = all(axis is None for axis in in_axes)
        self._leading = (np.arange(placement.num_workers),) if is_all_shared else ()

        @functools.cache
        def mapped(structure: Any) -> Any:
            axes = (
                None if axis is None else argument.unflatten([axis] * argument.num_leaves)
                for axis, argument in zip(in_axes, structure.children(), strict=True)
            )

            def of_worker(*arguments: Any) -> Any:
                if jax.lax.axis_size(placement.axis_name) != self._num_workers:
                    raise ValueError  # pmap itself takes fewer; `_tried` says what is wrong
                return function(*arguments[len(self._leading) :])

            return jax.pmap(
                of_worker,
                in_axes=(0,) * len(self._leading) + tuple(axes),
                donate_argnums=tuple(len(self._leading) + index for index in donate),
                axis_name=placement.axis_name,
                devices=placement.devices,
            )

        self._mapped = mapped

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._tried(lambda mapped: mapped(*self._leading, *arguments), arguments, keywords)

    def lower(self, *arguments: Any, **keywords: Any) -> Any:
        """As of a jitted function."""
        return self._tried(lambda mapped: mapped.lower(*self._leading, *arguments), arguments, keywords)

    def _tried(
        self, use: Callable[[Any], Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        try:
            if keywords:
                raise ValueError
            return use(self._mapped(jax.tree.structure(arguments)))
        except (TypeError, ValueError):
            # Looked at afterwards, so that a call that is right does not cost more.
            _mapping.check_arguments(arguments, keywords, self._in_axes, self._num_workers)
            raise
