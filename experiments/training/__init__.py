"""The settings of a run, its program, and the loop over its epochs."""
