"""What a user runs: `python -m experiments.NAME`, with train, demo, table, reproduce or report."""
