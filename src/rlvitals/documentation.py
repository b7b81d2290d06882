"""Where the documentation explains a rule or a metric.

The site that `make docs` builds has a permanent address for each: `rule/NAME.html` and `metric/ID.html`.
`RLVITALS_DOCS_URL` says where the site is, such as https://team.example/rlvitals/latest. Without it there are no links,
and a finding names the command that explains it.
"""

from __future__ import annotations

import os
from functools import cache
from urllib.parse import quote

VARIABLE = "RLVITALS_DOCS_URL"


def rule_address(rule: str) -> str:
    """The page of a rule; empty where nobody said where the site is, or where the rule is a user's own.

    >>> os.environ["RLVITALS_DOCS_URL"] = "https://team.example/rlvitals/"
    >>> rule_address("kl_explosion"), rule_address("a_rule_of_mine")
    ('https://team.example/rlvitals/rule/kl_explosion.html', '')
    >>> del os.environ["RLVITALS_DOCS_URL"]
    >>> rule_address("kl_explosion")
    ''
    """
    return _address("rule", rule) if _base() and is_ours(rule) else ""


def metric_address(concept: str) -> str:
    """The page of a metric, by its id; empty as for a rule."""
    from rlvitals import catalog

    return _address("metric", concept) if _base() and concept in catalog.shipped_ids() else ""


def more_about(rule: str) -> str:
    """Where to read more about a finding: the page of its rule, or the command that explains it; empty for a user's.

    >>> more_about("kl_explosion"), more_about("kto_margin_negative"), more_about("a_rule_of_mine")
    ('rlvitals explain kl_explosion', 'rlvitals explain kto_margin_negative', '')
    """
    return rule_address(rule) or (f"rlvitals explain {rule}" if is_ours(rule) else "")


@cache
def is_ours(rule: str) -> bool:
    """Whether it is a rule that ships, by itself or in a preset."""
    from rlvitals.health import rulebook  # whoever has no link to make does not wait for the rules

    own = (entry for entries in rulebook.presets().values() for entry in entries if isinstance(entry, dict))
    return rule in rulebook.shipped().rules or any(rule == entry.get("rule") for entry in own)


def _address(folder: str, name: str) -> str:
    return f"{_base()}/{folder}/{quote(name)}.html"


def _base() -> str:
    """Only addresses of web servers: a finding's link may leave this machine with a report or a message."""
    base = os.environ.get(VARIABLE, "").strip().rstrip("/")
    return base if base.startswith(("https://", "http://")) else ""
