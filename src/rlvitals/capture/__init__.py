"""The recorder: takes the data of a trainer and writes it to the run's directory."""
