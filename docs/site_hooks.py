"""For the site alone, called by MkDocs: what a folder of pages needs to work without a network and a repository."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:tests|benchmarks|examples|src|CONTRIBUTING\.md|CHANGELOG\.md|SECURITY\.md)[^)]*\)"
)
_METRIC = re.compile(r"^(## [^\n]+\n\n`([\w.]+)`)", re.MULTILINE)
"""The heading of a metric, with its id below it."""

SHIM = "https://unpkg.com/iframe-worker/shim"
"""Lets pages search that were opened from a folder. The theme fetches it; here it lies beside the pages."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Files of the repository that are no pages are named, not linked. A metric is found by its id, too."""
    if page.url.startswith("metrics/"):
        markdown = _METRIC.sub(r'<a id="\2"></a>\n\n\1', markdown)
    return _OUTSIDE.sub(r"\1", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """No page fetches anything from elsewhere."""
    return output.replace(SHIM, "../" * page.url.count("/") + "assets/iframe-worker.js")


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Nor does the page for addresses that do not exist."""
    return output_content.replace(SHIM, "/assets/iframe-worker.js") if template_name == "404.html" else output_content
