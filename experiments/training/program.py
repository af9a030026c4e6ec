"""What runs share that differ only in what is not compiled in: p, the seed, their length."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

import gossip_jax as gj
from experiments.common import memory
from experiments.tasks.data import Dataset
from experiments.tasks.task import Learner
from experiments.training.config import Config
from experiments.training.protocols import make_optimizer
from gossip_jax import health, training
from gossip_jax.absence import sitting_out
from gossip_jax.health import Watched
from gossip_jax.rounds import silence
from gossip_jax.training import WorkerState
from gossip_jax.workers import Backend


class Programs:
    """The programs of one dataset, each made when first asked for."""

    def __init__(self, dataset: Dataset):
        """Makes none yet."""
        self._dataset = dataset
        self._made: dict[tuple[Config, int], Program] = {}

    def __call__(self, config: Config, updates_per_epoch: int) -> "Program":
        """The program that runs with these settings."""
        key = config.compiled(), updates_per_epoch
        if key not in self._made:
            self._made[key] = Program(*key, self._dataset)
        return self._made[key]


class Program:
    """The functions of a run, placed on devices."""

    placement: gj.Placement
    init: Callable[[Array], WorkerState]
    """From a key to the state of all workers, stacked."""
    score: Callable[[Any, Any, Any], dict[str, Array]]
    """(params, model_state, examples) -> what the task's `score` gives of each worker: [W]."""
    score_one: Callable[[Any, Any, Any], dict[str, Array]]
    """The same for one replica."""

    def __init__(self, compiled: Config, updates_per_epoch: int, dataset: Dataset):
        """Compiles nothing yet.

        Args:
          compiled: of `Config.compiled`.
          updates_per_epoch: as often as the learning rate's schedule counts an epoch.
          dataset: what to learn.

        Raises:
          ValueError: the settings do not fit the devices.
        """
        config = self._config = compiled
        self._updates_per_epoch = updates_per_epoch
        self._learner = make_learner(config, dataset)
        self._compiled: dict[Any, Any] = {}  # by what `_kind` says
        self.placement = _place(config.workers, config.backend)
        self.init = self.placement.map(self._init_worker, in_axes=(None,))
        self.score = self.placement.map(self._learner.score, in_axes=(0, 0, None))
        self.score_one = jax.jit(self._learner.score)

    def epoch(self, *inputs: Any) -> Any:
        """Trains one run for an epoch, or several with different seeds: as `compile_epoch` says.

        Returns:
          The states, the mean losses [W], and, where `absent` was given, int32 [W]: the update at which
          a worker turned NaN or infinite, 0 for none; of several seeds [W, S].
        """
        return self._compiled[_kind(*inputs)](*inputs)

    def compile_epoch(
        self, states: Any, shards: Any, rounds: Any, keys: Any, traced: Any, absent: Any
    ) -> Any:
        """Compiles an epoch for arguments like these, where that has not been done.

        Args:
          states: of all workers, leaves [W, ...]; of several seeds [W, S, ...].
          shards: the training examples, likewise.
          rounds: of the epoch, stacked [T, ...]; of several seeds [S, T, ...].
          keys: the key of the run; of several seeds [S] of them.
          traced: the protocol's options that are values of the program: float32 scalars by name, the
            same for all seeds.
          absent: who sits out which update, bool [T, W]; of several seeds [S, T, W]. None for nobody:
            nothing of it is then in the program.

        Returns:
          The compiled program, as `jax.stages.Compiled`.
        """
        inputs = states, shards, rounds, keys, traced, absent
        kind = _kind(*inputs)
        if kind in self._compiled:
            return self._compiled[kind]
        epoch = self._epoch()
        if keys.ndim:
            axes = (0, 0, 0, 0, None, None if absent is None else 0)
            epoch = jax.vmap(self._epoch("seeds"), axes, axis_name="seeds")
        mapped: Any = self.placement.map(
            epoch, in_axes=(0, 0, None, None, None, None), donate_argnums=(0,)
        )
        compiled = mapped.lower(*inputs).compile(compiler_options=_options(self.placement))
        self._compiled[kind] = compiled
        memory.trim()
        return compiled

    def _epoch(self, lockstep: str | None = None) -> Callable[..., tuple[Any, Array, Any]]:
        batch_size = self._config.batch_size // self._config.workers

        def epoch(
            state: WorkerState, shard: Any, rounds: gj.Round, key: Array, traced: Any, absent: Any
        ) -> Any:
            if not self._config.spec.draws_rounds:
                rounds = silence(self._config.workers, rounds.step)  # all are: now known to be
            train: Any = functools.partial(
                training.train_epoch,
                self._learner.loss,
                self._optimizer(traced),
                batch_size,
                lockstep=lockstep,
            )
            if absent is None:
                return *train()(state, shard, rounds, key), None

            def wrap(update: training.Update) -> training.Update:
                return health.watching(sitting_out(update, absent, rounds.step[0]))

            watched, loss = train(wrap=wrap)(Watched(state, jnp.int32(0)), shard, rounds, key)
            return watched.state, loss, watched.sick_from

        return epoch

    def _init_worker(self, key: Array) -> WorkerState:
        params, model_state = self._learner.init(key)
        ones = dict.fromkeys(self._config.spec.traced, jnp.float32(1))
        return training.init_worker(params, model_state, self._optimizer(ones))

    def _optimizer(self, traced: Any) -> optax.GradientTransformationExtraArgs:
        return make_optimizer(self._config, traced, self._updates_per_epoch)


def make_learner(compiled: Config, dataset: Dataset) -> Learner:
    """The functions of the run's task, with the settings that it takes."""
    return compiled.task.make(dataset, **compiled.options(compiled.task.options))


def _options(placement: gj.Placement) -> dict[str, Any]:
    """Of the compiler: on CPU, an analysis that finds that no copy of the parameters is needed."""
    is_cpu = placement.devices[0].platform == "cpu"
    return {"xla_cpu_copy_insertion_use_region_analysis": True} if is_cpu else {}


def _kind(states: Any, shards: Any, rounds: Any, keys: Array, traced: Any, absent: Any) -> Any:
    """What tells programs apart: the numbers of seeds and of updates, what is known of the rounds, and
    whether workers sit out.
    """
    return keys.shape, rounds.step.shape, jax.tree.structure(rounds), absent is not None


def _place(num_workers: int, backend: Backend) -> gj.Placement:
    """Where the workers run; CPU devices that are left over were made for other rows of a table."""
    devices = None
    if jax.process_count() == 1 and jax.default_backend() == "cpu" and backend != "vmap":
        devices = jax.devices()[:num_workers]
    return gj.place(num_workers, backend, devices=devices)
