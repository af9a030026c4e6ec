"""Several processes that train as one: how they meet, and how they watch each other."""
