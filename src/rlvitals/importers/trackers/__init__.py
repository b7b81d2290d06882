"""Runs of trackers, fetched through their own clients: from a server, a database or an export."""
