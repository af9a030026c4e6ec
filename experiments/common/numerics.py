"""Settings of JAX that decide the bits of a result, and that the environment may change.

They are kept with a run, and compared where it goes on and among processes. What the rounds need is
pinned in `gossip_jax`: no setting changes who talks to whom.
"""

from typing import Any

import jax

STANDARD: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_threefry_partitionable": True,
    "jax_default_matmul_precision": None,
}
"""Their values where the environment says nothing, which those of older runs were taken to be."""


def here() -> dict[str, Any]:
    """Reads all of them, as they are now."""
    return {name: getattr(jax.config, name) for name in STANDARD}


def unusual() -> dict[str, Any]:
    """Those that differ from the standard: what a record of a run holds of them."""
    return {name: value for name, value in here().items() if value != STANDARD[name]}


def require_same(kept: dict[str, Any], where: str) -> None:
    """Raises ValueError, which names the variable, where a run was made with other ones than here.

    Args:
      kept: those of the run; where one is missing, it was the standard.
      where: the run, as the message calls it.
    """
    for name, value in here().items():
        before = kept.get(name, STANDARD[name])
        if value != before:
            remedy = (
                f"set {name.upper()}={int(before) if isinstance(before, bool) else before}"
                if before is not None
                else f"unset {name.upper()}"
            )
            raise ValueError(
                f"{name} is {value}, but {before} in {where}, whose result it decides: {remedy} in the "
                f"environment to go on with it"
            )
