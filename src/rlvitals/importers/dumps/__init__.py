"""Rollouts that other frameworks dump: one class a form, listed in `registry`."""
