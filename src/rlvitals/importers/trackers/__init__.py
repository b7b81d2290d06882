"""Fetches the runs of trackers through the trackers' own clients: from a server, a database or an export."""
