"""What a user runs: `python -m experiments.train`, `python -m experiments.demo`."""
