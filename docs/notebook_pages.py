"""The notebooks as pages of the site, called by MkDocs: each runs during the build and is shown with its outputs."""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
_LINK = re.compile(r"\((?:(?:\.\./)+examples/notebooks/)?(\w+)\.ipynb\)")
_OUTPUT = '<div class="notebook-output">{}</div>'
_SECONDS = 120


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """A page for each notebook, beside the pages that are written by hand."""
    for path in sorted(_NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_page(path.stem, path.read_bytes())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a notebook leads to its page."""
    beside = "../" * page.url.count("/") + "notebooks"
    return _LINK.sub(rf"({beside}/\1.md)", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """The notebooks themselves lie beside their pages, to be downloaded."""
    for path in _NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(path, Path(config["site_dir"]) / "notebooks" / path.name)


@cache  # `mkdocs serve` builds again and again
def _page(name: str, content: bytes) -> str:
    import nbclient
    import nbformat

    notebook = nbformat.reads(content.decode(), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"resources": {"metadata": {"path": folder}}, "extra_arguments": ["--log-level=ERROR"]}
        nbclient.NotebookClient(notebook, timeout=_SECONDS, kernel_name="python3", **given).execute()
        pieces = [piece for cell in notebook.cells for piece in _pieces(cell, folder)]
    about = (
        f'<a href="{name}.ipynb" download>Download this notebook</a>. The outputs are from a run of it for this page.'
    )
    return "\n\n".join([pieces[0], about, *pieces[1:]])


def _pieces(cell: Any, folder: str) -> list[str]:
    """A cell as Markdown: its text or its code, then its outputs."""
    if cell.cell_type != "code":
        title, _, rest = cell.source.partition("\n")
        return [title, rest] if title.startswith("# ") else [cell.source]
    return [f"```python\n{cell.source}\n```", *(_shown(output, folder) for output in cell.outputs)]


def _shown(output: Any, folder: str) -> str:
    """An output as HTML on one line, which Markdown leaves as it is; paths are those a reader would see."""
    if output.output_type == "error":
        raise ValueError("\n".join(output.traceback))
    data = output.get("data", {})
    if "text/html" in data:
        html = re.sub(r"\s*\n\s*", " ", data["text/html"])
    else:
        text = output.get("text", data.get("text/plain", ""))
        html = f"<pre><code>{escape(text.rstrip()).replace(chr(10), '&#10;')}</code></pre>"
    return _OUTPUT.format(html.replace(f"{folder}/", ""))
