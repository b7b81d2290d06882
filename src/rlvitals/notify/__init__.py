"""Notifications of findings through Slack, Discord, Telegram, ntfy, e-mail, PagerDuty, and any other service that a
template describes.

The process beside the trainer reads the health log and sends them, so an outage or a slow service cannot affect
training. Addresses, tokens and recipients come from the environment and are never written to a file, a message or a
command line.
"""
