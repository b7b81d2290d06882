"""The version of rlvitals, which runs and reports carry."""

__version__ = "0.2.0"
