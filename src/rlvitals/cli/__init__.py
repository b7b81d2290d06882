"""The command line: one command, one file per verb. The logic is in `views` and `catalog`."""
