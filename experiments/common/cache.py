"""What later commands find of this one in the user's cache: the programs that were compiled."""

import os
import warnings
from pathlib import Path

import jax


def keep_programs() -> None:
    """Has JAX keep what it compiles in the user's cache, unless it was told of another place.

    What is there may be deleted at any time. Where it cannot be written, nothing is kept.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gossip_jax" / "programs"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # One that another process is writing, or that a kill has torn, is compiled anew.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
