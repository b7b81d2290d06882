"""The shape of the package: who may import whom, what stays light, what is public, what the docs promise."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rlvitals
from conftest import REPO

SOURCE = REPO / "src" / "rlvitals"

# Room -> the rooms it may import from. Edges (cli) may import anything below them.
BOTTOM = {"errors", "codec", "plugins", "yaml_reader", "terminal", "masking", "guard", "splits", "version"}
DATA = BOTTOM | {"values", "records", "config"}
MAY_IMPORT = {
    "errors": set(),
    "codec": {"guard"},
    "plugins": {"guard"},
    "terminal": set(),
    "masking": set(),
    "guard": {"terminal"},
    "splits": set(),
    "version": set(),
    "yaml_reader": {"errors"},
    "values": set(),
    "records": {"values"},
    "config": {"errors", "yaml_reader", "masking"},
    "catalog": BOTTOM,
    "contract": {"records", "catalog"},
    "compute": BOTTOM | {"values", "records", "catalog"},
    "textscore": {"errors"},
    "render": DATA | {"catalog", "contract"},
    "store": DATA,
    "importers": DATA | {"store"},
    "sinks": DATA | {"store", "catalog", "render"},
    "health": DATA | {"catalog"},
    "capture": DATA | {"store", "render", "catalog", "health", "sinks"},  # sinks only where no process may be spawned
    "views": DATA | {"store", "importers", "catalog", "contract", "health", "render"},
    "clock": DATA | {"store", "health"},
    "follow": DATA | {"store", "sinks", "clock"},
    "adapters": DATA | {"capture", "store", "importers", "health", "catalog"},
    "train": DATA | {"store", "catalog", "compute", "textscore", "health", "render", "capture", "views", "adapters"},
    "web": DATA | {"store", "catalog", "contract", "health", "render", "views"},
    "tui": DATA | {"catalog", "contract", "health", "render", "views"},
    "cli": DATA
    | {
        "store",
        "importers",
        "catalog",
        "health",
        "textscore",
        "render",
        "views",
        "capture",
        "sinks",
        "train",
        "web",
        "tui",
    },
}
POSIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "yaml", "rich", "matplotlib", "importlib.metadata", "asyncio", "socket"}


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0] if parts != ("__init__",) else "rlvitals"


def imports_of(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_level(tree: ast.Module) -> ast.Module:
    """The module without its function bodies: what runs at import."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

    return Strip().visit(ast.parse(ast.unparse(tree)))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_the_rooms_below_it(path):
    room = room_of(path)
    if room == "rlvitals":
        return assert_root_is_only_names(path)
    rooms = {name.split(".")[1] for name in imports_of(ast.parse(path.read_text())) if name.startswith("rlvitals.")}
    known_rooms = {child.stem for child in SOURCE.iterdir()}
    assert rooms & known_rooms <= MAY_IMPORT[room] | {room}


def assert_root_is_only_names(path: Path) -> None:
    assert {name.split(".")[0] for name in imports_of(module_level(ast.parse(path.read_text())))} <= {
        "__future__", "importlib", "typing", "rlvitals",
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_needs_a_posix_system_to_be_imported(path):
    at_import = imports_of(module_level(ast.parse(path.read_text())))
    assert not {name.split(".")[0] for name in at_import} & POSIX_ONLY


def modules_after(code: str) -> set[str]:
    listing = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(listing.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    assert not modules_after("import rlvitals") & HEAVY


@pytest.mark.parametrize("monitor", [False, True])
def test_recording_a_run_imports_nothing_heavy(tmp_path, monitor):
    code = (
        f"import rlvitals\nrun = rlvitals.start({str(tmp_path / 'run')!r}, config={{'lr': 1}}, monitor={monitor})\n"
        "run.log({'loss': 1.0, 'kl': float('nan')}, step=1)\nrun.log_eval({'accuracy': 0.5})\nrun.finish()"
    )
    plug_ins = {"importlib.metadata", "socket"} if monitor else set()  # the catalogue and the rulebook look for them
    assert not modules_after(code) & (HEAVY - plug_ins)


def test_the_public_names_are_what_the_docs_say():
    documented = set(re.findall(r"^\| `rlvitals\.(\w+)", (REPO / "docs" / "api.md").read_text(), re.MULTILINE))
    assert documented == set(rlvitals.__all__)
    for name in rlvitals.__all__:
        assert getattr(rlvitals, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = rlvitals.nonsense


PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", REPO / "SECURITY.md", *sorted((REPO / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_path_and_link_in_the_docs_exists(page):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"[a-z]+:", link)]
    missing = [link for link in links if not (page.parent / link).exists()]
    named = re.findall(r"`((?:src|docs|tests|benchmarks|examples|\.ci)/[\w./-]+)`", text)
    patterns = [re.sub("NAME|FAMILY", "*", path) for path in named]  # what a recipe leaves open fits some file
    missing += [path for path in patterns if not any(REPO.glob(path))]
    assert not missing
    assert text.strip()


def test_every_make_target_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make (\w+)`", page.read_text())}
    assert named <= targets
    assert {"demo", "test", "quick", "lint", "bench"} <= targets


def test_every_verb_in_the_readme_exists():
    from rlvitals.cli.main import VERBS

    shells = "\n".join(re.findall(r"```bash\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL))
    named = set(re.findall(r"^rlvitals (\w+)", shells, re.MULTILINE))
    assert named
    assert named <= set(VERBS)


def test_the_version_has_a_changelog_entry():
    assert f"## {rlvitals.__version__}" in (REPO / "CHANGELOG.md").read_text()


def test_extras_named_in_error_messages_exist():
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set()
    for path in SOURCE.rglob("*.py"):
        named |= set(re.findall(r"MissingDependency\(\s*[^,]+,\s*\"(\w+)\"", path.read_text()))
    assert named
    assert named <= set(extras)
