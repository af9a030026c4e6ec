"""What runs share that differ only in p, α, τ, the seed or their length: compiled once for all."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

import gossip_jax as gj
from experiments import memory
from experiments.config import Config
from experiments.data import Dataset, Examples
from experiments.models import make_model
from experiments.protocols import PROTOCOLS, make_optimizer
from experiments.task import classification
from gossip_jax import training
from gossip_jax.training import WorkerState

# The settings that reach a compiled program as values, and what stands for them in its name.
_FREE = {"p": 0.0, "seed": 0, "epochs": 1, "validate_every": 1, "out": None, "data_dir": None}
_FREE_OF_PAIRWISE = {"alpha": None, "peers": "uniform", "period": 1}


class Programs:
    """The programs of one dataset, each made when first asked for."""

    def __init__(self, dataset: Dataset):
        """Makes none yet."""
        self._dataset = dataset
        self._made: dict[tuple[Config, int], Program] = {}

    def __call__(self, config: Config, updates_per_epoch: int) -> "Program":
        """The program that runs with these settings."""
        free = _FREE | (_FREE_OF_PAIRWISE if PROTOCOLS[config.protocol].is_pairwise else {})
        key = dataclasses.replace(config, **free), updates_per_epoch
        if key not in self._made:
            self._made[key] = Program(config, self._dataset, updates_per_epoch)
        return self._made[key]


class Program:
    """The functions of a run, placed on devices."""

    placement: gj.Placement
    init: Callable[[Array], WorkerState]
    """From a key to the state of all workers, stacked."""
    score: Callable[[Any, Any, Examples], Array]
    """(params, model_state, examples) -> how many examples each worker gets right, int32 [W]."""
    score_one: Callable[[Any, Any, Examples], Array]
    """The same for one replica."""

    def __init__(self, config: Config, dataset: Dataset, updates_per_epoch: int):
        """Compiles nothing yet.

        Raises:
          ValueError: the settings do not fit the devices.
        """
        self._config, self._updates_per_epoch = config, updates_per_epoch
        self._task = classification(
            make_model(config.model, dataset.num_classes, config.width), dataset, config.augment
        )
        self._compiled: dict[tuple[int, int], Any] = {}
        self.placement = gj.place(config.workers, config.backend)
        self.init = self.placement.map(self._init_worker, in_axes=(None,))
        self.score = self.placement.map(self._task.num_correct, in_axes=(0, 0, None))
        self.score_one = jax.jit(self._task.num_correct)

    def epoch(self, states: Any, shards: Any, rounds: Any, keys: Any, alpha: Array) -> Any:
        """Trains one run for an epoch, or several with different seeds: as `compile_epoch` says."""
        return self._compiled[_size(rounds, keys)](states, shards, rounds, keys, alpha)

    def compile_epoch(self, states: Any, shards: Any, rounds: Any, keys: Any, alpha: Array) -> None:
        """Compiles an epoch for arguments like these, where that has not been done.

        Args:
          states: of all workers, leaves [W, ...]; of several seeds [W, S, ...].
          shards: the training examples, likewise.
          rounds: of the epoch, stacked [T, ...]; of several seeds [S, T, ...].
          keys: the key of the run; of several seeds [S] of them.
          alpha: the moving rate, float32 scalar, the same for all seeds.
        """
        if _size(rounds, keys) in self._compiled:
            return
        epoch = self._epoch()
        if keys.ndim:
            epoch = jax.vmap(self._epoch("seeds"), in_axes=(0, 0, 0, 0, None), axis_name="seeds")
        mapped: Any = self.placement.map(epoch, in_axes=(0, 0, None, None, None), donate_argnums=(0,))
        self._compiled[_size(rounds, keys)] = mapped.lower(
            states, shards, rounds, keys, alpha
        ).compile()
        memory.trim()

    def _epoch(self, lockstep: str | None = None) -> Callable[..., tuple[WorkerState, Array]]:
        batch_size = self._config.batch_size // self._config.workers

        def epoch(state: WorkerState, shard: Any, rounds: gj.Round, key: Array, alpha: Array) -> Any:
            # α is a value of the program, not a part of it, so that one program serves every α.
            train = training.train_epoch(
                self._task.loss, self._optimizer(alpha), batch_size, lockstep=lockstep
            )
            return train(state, shard, rounds, key)

        return epoch

    def _init_worker(self, key: Array) -> WorkerState:
        params, model_state = self._task.init(key)
        return training.init_worker(params, model_state, self._optimizer(jnp.float32(1)))

    def _optimizer(self, alpha: Array) -> optax.GradientTransformationExtraArgs:
        return make_optimizer(self._config, alpha, self._updates_per_epoch)


def _size(rounds: gj.Round, keys: Array) -> tuple[int, int]:
    """Updates in an epoch, and how many runs at once; 0 for one whose key has no axis of seeds."""
    return rounds.step.shape[-1], keys.shape[0] if keys.ndim else 0
