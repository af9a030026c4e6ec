"""The protocols, one file each: optax gradient transformations that run under a worker axis."""
