"""For the site alone, called by MkDocs: what a folder of pages needs to work without a network and a repository."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

_REPO = Path(__file__).parent.parent
_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:tests|benchmarks|examples|src|CONTRIBUTING\.md|CHANGELOG\.md|SECURITY\.md)[^)]*\)"
)
_METRIC = re.compile(r"^(## [^\n]+\n\n`([\w.]+)`)", re.MULTILINE)
"""The heading of a metric, with its id below it."""

SHIM = "https://unpkg.com/iframe-worker/shim"
"""Lets pages search that were opened from a folder. The theme fetches it; here it lies beside the pages."""


_PERMANENT = re.compile(r'<(?:h2|a) id="([\w.]+)"')
"""What a page of rules or metrics has an anchor for: names of rules, ids of metrics."""
_FORWARD = """<!doctype html><meta charset="utf-8"><title>{name}</title>
<meta http-equiv="refresh" content="0; url={page}"><link rel="canonical" href="{page}">
<p>{name} is explained on <a href="{page}">this page</a>.</p>
"""


def on_config(config: Any, **_: Any) -> Any:
    """Every page names its version. `mike` adds a menu of the published versions."""
    text = (_REPO / "src" / "rlvitals" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None
    config.copyright = f"rlvitals {found[1]}"
    return config


def on_post_build(config: Any, **_: Any) -> None:
    """Every rule and every metric gets an address that does not change when it moves to another page: rule/NAME.html
    and metric/ID.html. `rlvitals.documentation` returns them.
    """
    site = Path(config["site_dir"])
    for folder, single in (("rules", "rule"), ("metrics", "metric")):
        (site / single).mkdir(exist_ok=True)
        for page in (site / folder).glob("*.html"):
            for name in _PERMANENT.findall(page.read_text(encoding="utf-8")):
                target = escape(f"../{folder}/{page.name}#{name}")
                (site / single / f"{name}.html").write_text(_FORWARD.format(name=escape(name), page=target), "utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Files of the repository that are not pages are named, not linked. A metric is also found by its id."""
    if page.url.startswith("metrics/"):
        markdown = _METRIC.sub(r'<a id="\2"></a>\n\n\1', markdown)
    return _OUTSIDE.sub(r"\1", markdown)


_IMAGE = re.compile(r'<img ([^>]*?)src="([^"]+)"([^>]*)>')


def on_page_content(html: str, **_: Any) -> str:
    """A picture is loaded when it scrolls into view. A click shows it in full size, since phones are narrow."""
    return _IMAGE.sub(r'<a href="\2"><img \1src="\2"\3 loading="lazy"></a>', html)


_NAME_IN_CELL = re.compile(r"(?<=<code>)[\w./{}*|-]{12,}(?=</code>)")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """No page fetches anything from elsewhere. Long names may be broken after a slash, a dot or an underscore: this
    comes after the search has read the page, which would see two words.
    """
    output = _NAME_IN_CELL.sub(lambda name: re.sub(r"([/._])(?=[^/._])", r"\1<wbr>", name[0]), output)
    return output.replace(SHIM, "../" * page.url.count("/") + "assets/iframe-worker.js")


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Nor does the page for addresses that do not exist."""
    return output_content.replace(SHIM, "/assets/iframe-worker.js") if template_name == "404.html" else output_content
