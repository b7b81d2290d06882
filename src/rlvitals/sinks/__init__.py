"""Destinations that follow the log in a separate process: a follower, a registry, one file per tracker."""
