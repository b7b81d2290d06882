"""The read side: the only door to stored data for the command line, the dashboard and reports."""
