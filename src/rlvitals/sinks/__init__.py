"""Trackers, and the follower that forwards rows to them from a separate process. Each tracker has its own module."""
