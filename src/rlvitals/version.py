"""The version of rlvitals, stored in runs and reports."""

__version__ = "0.2.0"
