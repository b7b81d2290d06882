"""Long learning runs, started by `make learn`: the trainers' claims, mostly on three seeds."""
