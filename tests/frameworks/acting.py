"""What tests of acting share: a rule that asks for something on purpose, and what was answered."""

from __future__ import annotations

import json
from pathlib import Path


def rule(action, when):
    """A rule of one's own that asks for an action."""
    return {
        "rule": f"asked_{action}", "kind": "instability", "when": when, "severity": "critical", "warm_up": 1,
        "hold": "1 of 1", "action_critical": action, "certain": action == "stop", "title": "on purpose",
    }  # fmt: skip


def answers(folder):
    """Action, answer and its words, in order."""
    path = Path(folder) / "logs" / "findings.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return [(line["action"], line["answer"], line["text"]) for line in lines if line["type"] == "answer"]
