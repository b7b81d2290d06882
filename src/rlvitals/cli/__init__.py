"""The command line: one command, one file per verb. Logic lives below, in views and catalog."""
