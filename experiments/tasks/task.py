"""What the workers learn, and how it is scored: all that the rest of the house knows of a task."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from experiments.tasks.data import Dataset
from gossip_jax.training import Loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure by which replicas are scored.

    Args:
      name: in records, as in `rank0_accuracy`.
      label: in words.
      is_higher_better: whether the best replica has the highest.
      is_mean: whether it is a mean over examples, of which `score` gives the sum.
      is_share: whether it lies between 0 and 1: the report has it as a percentage.
      format: of the figure on the terminal.
      report_format: of the figure, or percentage, in the report.
    """

    name: str
    label: str
    is_higher_better: bool
    is_mean: bool = False
    is_share: bool = False
    format: str = ".4g"
    report_format: str = ".4g"

    def of(self, scored: ArrayLike, num_examples: int) -> np.ndarray:
        """The figure, float64, from what `score` gave for so many examples."""
        return np.asarray(scored) / (num_examples if self.is_mean else 1)

    @property
    def best(self) -> Callable[..., Any]:
        """`max` or `min`: whichever finds the best of several figures."""
        return max if self.is_higher_better else min

    @property
    def worst(self) -> Callable[..., Any]:
        """`min` or `max`: whichever finds the worst."""
        return min if self.is_higher_better else max

    def on_terminal(self, value: float) -> str:
        """The figure as the terminal shows it."""
        return f"{value:{self.format}}"

    def in_report(self, value: float) -> str:
        """The figure as the report shows it, without its unit."""
        return f"{self.scale * value:{self.report_format}}"

    def difference(self, value: float) -> str:
        """A difference of two figures as the report shows it, with its sign."""
        return f"{self.scale * value:+{self.report_format}}".replace("-", "−")

    @property
    def scale(self) -> int:
        """What a figure is multiplied by in the report."""
        return 100 if self.is_share else 1

    @property
    def heading(self) -> str:
        """The label and the unit, as an axis has them."""
        return f"{self.label} (%)" if self.is_share else self.label


class Learner(NamedTuple):
    """A model on a dataset, as pure functions of its parameters: one worker's view."""

    init: Callable[[Array], tuple[Any, Any]]  # key -> (params, model_state)
    loss: Loss  # the mean over a batch of examples
    score: Callable[[Any, Any, Any], dict[str, Array]]
    """(params, model_state, examples) -> a scalar for each metric, by its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is learnt, and how it is scored: a value of `--dataset`.

    Args:
      name: of the task, and of its dataset.
      metrics: what replicas are scored by. The first decides which checkpoint is the best, and is the
        one that tables and figures show; records have all.
      models: the values of `--model` that can learn it; the first, where none is given.
      load: reads the dataset, from a directory that may be given. It raises ValueError and OSError.
      make: `(dataset, **options)` -> a learner.
      options: the settings that `make` takes.
    """

    name: str
    metrics: tuple[Metric, ...]
    models: tuple[str, ...]
    load: Callable[[Path | None], Dataset]
    make: Callable[..., Learner]
    options: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        """The first one decides."""
        return self.metrics[0]
