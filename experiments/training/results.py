"""What comes out of a run: figures after an epoch, and at the end."""

import re
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """A metric on the validation set, over workers."""

    mean: float
    min: float
    max: float


class EpochMetrics(NamedTuple):
    """A line of metrics.jsonl, where `validation` is `validation_accuracy_mean` and so on."""

    epoch: int
    updates: int  # since the start, as are all counts
    training_loss: float  # mean over workers and over the epoch's updates
    validation: dict[str, Spread]  # by metric
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    seconds: float

    def flat(self) -> dict[str, Any]:
        """All figures by name, as they are written."""
        validation = {
            f"validation_{metric}_{of}": value
            for metric, spread in self.validation.items()
            for of, value in spread._asdict().items()
        }
        return _in_place("validation", validation, self._asdict())

    @classmethod
    def of(cls, flat: dict[str, Any]) -> "EpochMetrics":
        """The inverse of `flat`; TypeError where a figure is missing, or is none of these."""
        found, rest = _divide(flat, r"validation_(?P<metric>.+)_(?P<of>mean|min|max)")
        return cls(validation={name: Spread(**spread) for name, spread in found.items()}, **rest)


class Scores(NamedTuple):
    """A metric on the test set, after the last update."""

    rank0: float  # of worker 0
    aggregate: float  # of the mean replica
    worker: list[float]  # of each


class Result(NamedTuple):
    """The figures of a finished run, where `test` is written as `rank0_accuracy` and so on."""

    test: dict[str, Scores]  # by metric
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    share_of_all_reduce_bytes: float  # of what All-reduce SGD sends in as many updates
    updates: int
    updates_per_second: float

    def flat(self) -> dict[str, Any]:
        """All figures by name, as they are written."""
        test = {
            f"{of}_{metric}": value
            for metric, scores in self.test.items()
            for of, value in scores._asdict().items()
        }
        return _in_place("test", test, self._asdict())

    @classmethod
    def of(cls, flat: dict[str, Any]) -> "Result":
        """The inverse of `flat`; TypeError where a figure is missing, or is none of these."""
        found, rest = _divide(flat, r"(?P<of>rank0|aggregate|worker)_(?P<metric>.+)")
        return cls(test={name: Scores(**scores) for name, scores in found.items()}, **rest)


def _in_place(field: str, figures: dict[str, Any], among: dict[str, Any]) -> dict[str, Any]:
    """The fields of `among`, with figures by name where `field` was."""
    return {
        name: value
        for key, own in among.items()
        for name, value in (figures if key == field else {key: own}).items()
    }


def _divide(flat: dict[str, Any], pattern: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Figures of metrics, by metric and by what they are of; and all others."""
    found: dict[str, dict[str, Any]] = {}
    rest = {}
    for key, value in flat.items():
        if match := re.fullmatch(pattern, key):
            found.setdefault(match["metric"], {})[match["of"]] = value
        else:
            rest[key] = value
    return found, rest
