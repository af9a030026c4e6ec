"""How long an update takes, and why: `python -m experiments.bench`."""
