"""The package: what imports quickly, what is public, what the docs promise. For its rooms see test_architecture."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib

import pytest

import rlvitals
from conftest import REPO
from warm_python import Warm

SOURCE = REPO / "src" / "rlvitals"

POSIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "yaml", "rich", "matplotlib", "importlib.metadata", "asyncio", "socket"}


def imports_of(tree: ast.AST, *, at_import: bool = False) -> set[str]:
    """The names that a module imports, or only those imported with it, not inside functions."""
    found, open_nodes = set(), [tree]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif not (at_import and isinstance(node, ast.FunctionDef)):
            open_nodes += ast.iter_child_nodes(node)
    return found


def tree_of(path: str) -> ast.Module:
    """The syntax tree of a module, by its path in the package."""
    return ast.parse((SOURCE / path).read_text())


def numbers_in_functions(tree: ast.Module) -> list[tuple[int, float]]:
    """Line and value of every number in a function that may be a threshold. Allowed are positions in a window; 0, 1
    and 2 if they are not factors; and 100 in a conversion to percent, which is not a comparison.
    """
    found = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = list(ast.walk(function))
        positions = {part for node in inside if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
        compared = {part for node in inside if isinstance(node, ast.Compare) for part in (node.left, *node.comparators)}
        factors = {
            part.operand if isinstance(part, ast.UnaryOp) else part
            for node in inside
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            for part in (node.left, node.right)
        }
        for node in inside:
            if not isinstance(node, ast.Constant) or type(node.value) not in (int, float) or node in positions:
                continue
            plain = node.value in (0, 1, 2) or (node.value == 100 and node not in compared)
            if node in factors or not plain:
                found.append((node.lineno, node.value))
    return found


RULES = [f"health/rules/{path.name}" for path in SOURCE.glob("health/rules/*.py") if path.name != "guides.py"]


@pytest.mark.parametrize("path", RULES)
def test_no_rule_has_a_number_in_its_code(path):
    assert len(RULES) >= 9
    found = numbers_in_functions(tree_of(path))
    assert not found, f"{path}: give these a name among the `numbers` of the rule's entry in health/data/rules"


@pytest.mark.parametrize(
    "line",
    ["return n > 5", "return n < 0.5", "return 2 * n", "return n * -1.0", "return n > 100", "return max(n, 1e-9)",
     "return [a for a in n if a < -3]", "return (lambda: n + 0.25)()"],
)  # fmt: skip
def test_a_number_in_a_rule_is_found(line):
    assert len(numbers_in_functions(ast.parse(f"def rule(n):\n    {line}"))) == 1


@pytest.mark.parametrize(
    "line", ["return n[-3:]", "return n[5]", "return n / 2", "return n**2", "return 100.0 if n <= 1 else 1.0"]
)
def test_arithmetic_in_a_rule_is_allowed(line):
    assert numbers_in_functions(ast.parse(f"LIMIT = 0.7\ndef rule(n):\n    {line}")) == []


def test_the_root_is_only_names():
    assert {name.split(".")[0] for name in imports_of(tree_of("__init__.py"), at_import=True)} <= {
        "__future__", "importlib", "typing", "rlvitals",
    }  # fmt: skip


def test_no_module_needs_a_posix_system_to_be_imported():
    needed = {
        path: {name.split(".")[0] for name in imports_of(tree_of(path), at_import=True)} & POSIX_ONLY
        for path in (str(found.relative_to(SOURCE)) for found in SOURCE.rglob("*.py"))
    }
    assert len(needed) > 100
    assert {path: names for path, names in needed.items() if names} == {}


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
    patterns = [re.sub("NAME|FAMILY", "*", path) for path in named]  # the open part of a recipe's path matches any text
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
    named = set(re.findall(r"^rlvitals ([\w-]+)", shells, re.MULTILINE))
    assert named
    assert named <= set(VERBS)


def test_the_version_has_a_changelog_entry():
    assert f"## {rlvitals.__version__}" in (REPO / "CHANGELOG.md").read_text()


def test_extras_named_in_error_messages_exist():
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set()
    for path in SOURCE.rglob("*.py"):
        named |= set(re.findall(r"(?:MissingDependency|needs)\(\s*[^,\n]+,\s*\"([\w-]+)\"", path.read_text()))
    assert named
    assert named <= set(extras)


@pytest.fixture(scope="module")
def dear():
    """Represents a fixture that takes long to make."""
    return object()


def test_tests_that_share_a_fixture_of_their_module_share_a_process(request, dear):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("this process has no others beside it")
    assert request.node.nodeid.endswith("@test_shape.py dear")  # xdist keeps a group together by this suffix


def test_the_processes_of_xdist_are_forked_from_one_that_has_imported_torch():
    """If a process cannot start in this way, xdist starts a new one: nothing fails, the suite is only slower."""
    if "PYTEST_XDIST_WORKER" not in os.environ or sys.platform != "linux" or "OMP_NUM_THREADS" not in os.environ:
        pytest.skip("this process was started by itself")
    assert Warm.inherited is not None
    assert "torch" in sys.modules
