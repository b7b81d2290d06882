"""Notifications of findings through the services that people read: Slack, Discord, Telegram, ntfy, e-mail, PagerDuty,
and any other by a template.

Everything here runs in the process beside the trainer, which reads the health log: an outage or a slow service cannot
touch training. Addresses, tokens and recipients come from the environment, and are in no file, message or argument.
"""
