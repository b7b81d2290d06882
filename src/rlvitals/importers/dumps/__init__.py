"""Rollouts that other frameworks dump: one class per form, listed in `registry`."""
