"""Tables of experiments, a TOML file each, and the sweep that runs what is missing of them."""
