"""The read side. The command line, the dashboard and reports read stored data only through this package."""
