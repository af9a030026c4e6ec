"""On what a run ran: devices, versions, commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import gossip_jax
from gossip_jax import Placement

_PACKAGES = ("jax", "jaxlib", "optax", "flax", "numpy", "tensorflow-datasets", "scikit-learn")


def surroundings(placement: Placement) -> dict[str, Any]:
    """What can be told of the machine and the software, as JSON holds it."""
    return {
        "placement": placement.backend,
        "devices": [
            f"{device.platform}:{device.id} {device.device_kind}" for device in placement.devices
        ],
        "platform": platform.platform(),
        "versions": versions(),
        "commit": commit(),
    }


def versions() -> dict[str, str]:
    """Of Python, this library, and the packages that it runs on."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "gossip_jax": gossip_jax.__version__} | packages


def commit() -> str | None:
    """Of this checkout, with "+changes" where its code differs from it; None outside git."""
    here = Path(__file__).resolve().parents[1]
    try:
        head = _git(here, "rev-parse", "HEAD")
        changes = _git(here, "status", "--porcelain", "--", here.parent / "gossip_jax", here)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.strip() + ("+changes" if changes else "")


def _git(directory: Path, *arguments: Any) -> str:
    command = ["git", "-C", directory, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
