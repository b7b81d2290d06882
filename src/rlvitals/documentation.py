"""The addresses of the documentation's pages on rules and metrics.

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
    """The page of a rule; empty if no address of the site is set, or if the rule is a user's.

    >>> os.environ["RLVITALS_DOCS_URL"] = "https://team.example/rlvitals/"
    >>> rule_address("kl_explosion"), rule_address("a_rule_of_mine")
    ('https://team.example/rlvitals/rule/kl_explosion.html', '')
    >>> del os.environ["RLVITALS_DOCS_URL"]
    >>> rule_address("kl_explosion")
    ''
    """
    return _address("rule", rule) if _base() and is_ours(rule) else ""


def metric_address(concept: str) -> str:
    """The page of a metric, by its id; empty under the same conditions as for a rule."""
    from rlvitals import catalog

    return _address("metric", concept) if _base() and concept in catalog.shipped_ids() else ""


def more_about(rule: str) -> str:
    """Where to read more about a finding: the page of its rule, or the command that explains it; empty for a user's
    rule.

    >>> more_about("kl_explosion"), more_about("kto_margin_negative"), more_about("a_rule_of_mine")
    ('rlvitals explain kl_explosion', 'rlvitals explain kto_margin_negative', '')
    """
    return rule_address(rule) or (f"rlvitals explain {rule}" if is_ours(rule) else "")


@cache
def is_ours(rule: str) -> bool:
    """Whether the rule is shipped with rlvitals, by default or in a preset."""
    from rlvitals.health import rulebook  # loaded late: without a link to make, the rules are not needed

    own = (entry for entries in rulebook.presets().values() for entry in entries if isinstance(entry, dict))
    return rule in rulebook.shipped().rules or any(rule == entry.get("rule") for entry in own)


def _address(folder: str, name: str) -> str:
    return f"{_base()}/{folder}/{quote(name)}.html"


def _base() -> str:
    """The address of the site, if it is a web address: a finding's link may leave this machine in a report or a
    message.
    """
    base = os.environ.get(VARIABLE, "").strip().rstrip("/")
    return base if base.startswith(("https://", "http://")) else ""
