"""Long learning runs, `make learn`: what a trainer promises, on three seeds."""
