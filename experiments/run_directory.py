"""The files of a run: `config.json`, `metrics.jsonl`, `result.json`."""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import gossip_jax
from experiments.run import EpochMetrics, Result, Setup

_PACKAGES = (
    "jax",
    "jaxlib",
    "optax",
    "flax",
    "numpy",
    "tensorflow-datasets",
    "scikit-learn",
)


def require_free(path: Path) -> None:
    """Raises ValueError where there is something in a directory at `path`."""
    if path.is_dir() and any(path.iterdir()):
        holds = "another run" if (path / "config.json").exists() else "other files"
        raise ValueError(f"--out {path} holds {holds}; name a new or an empty directory")


class RunDirectory:
    """A new directory that a run writes to, and never one that holds something else."""

    def __init__(self, path: Path):
        """Makes the directory.

        Raises:
          ValueError: there is something in it already.
          OSError: it cannot be made.
        """
        require_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"--out {path} cannot be made: {error.strerror}") from error
        self.path = path

    def write_config(self, setup: Setup) -> None:
        """All that reproduces the run, with the versions and devices that it ran on."""
        devices = setup.placement.devices
        surroundings = {
            "placement": setup.placement.backend,
            "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
            "platform": platform.platform(),
            "versions": _versions(),
        }
        content = _to_json(dataclasses.asdict(setup.config) | surroundings, indent=2)
        # Of two runs that were given the same empty directory, one must fail here.
        with (self.path / "config.json").open("x", encoding="utf-8") as file:
            file.write(content + "\n")

    def append_metrics(self, metrics: EpochMetrics) -> None:
        """One line for an epoch."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_to_json(metrics._asdict()) + "\n")

    def write_result(self, result: Result) -> None:
        """The run's figures: the file is there, whole, only once the run has finished."""
        partial = self.path / "result.json.partial"
        partial.write_text(_to_json(result._asdict(), indent=2) + "\n", encoding="utf-8")
        os.replace(partial, self.path / "result.json")


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "gossip_jax": gossip_jax.__version__} | packages


def _to_json(content: Any, indent: int | None = None) -> str:
    return json.dumps(_plain(content), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    """What JSON can hold: a path becomes a string, a NaN or an infinity null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
