"""Destinations that follow the log in a process of their own: a follower, a registry, one file per tracker."""
