"""Programs of these tests are forked from an interpreter that has imported everything (tests/warm_python.py). No
trainer may rely on that: every dotted name it uses must exist after the imports of its own module.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from conftest import REPO

SOURCE = REPO / "src" / "rlvitals"
ROOMS = ("train", "adapters", "compute", "capture")
PACKAGES = {"torch", "transformers", "accelerate", "datasets", "peft", "trl", "numpy"}

RESOLVE = """
import importlib, json, sys
missing = []
for package, chains in json.loads(sys.argv[1]).items():
    root = importlib.import_module(package)
    for chain in chains:
        found = root
        for name in chain.split(".")[1:]:
            if not hasattr(found, name):
                missing.append(chain)
                break
            found = getattr(found, name)
print(json.dumps(missing))
"""


def chains_in(tree: ast.AST) -> set[str]:
    """Names such as `torch.nn.utils.rnn` that rely on a plain import of their package."""
    plain, more = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                (more if "." in alias.name else plain).add(alias.asname or alias.name)
    found = set()
    for node in ast.walk(tree):
        chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        first = chain.partition(".")[0]
        is_plain = chain.replace(".", "").isidentifier() and first in PACKAGES and first in plain | more
        if is_plain and not any(chain.startswith(f"{module}.") for module in more):
            found.add(chain)
    return found


@pytest.mark.slow
@pytest.mark.cold
def test_what_is_reached_by_dots_comes_with_the_package():
    chains: dict[str, set[str]] = {}
    for room in ROOMS:
        for path in (SOURCE / room).rglob("*.py"):
            for chain in chains_in(ast.parse(path.read_text(encoding="utf-8"))):
                chains.setdefault(chain.split(".")[0], set()).add(chain)
    assert "torch.nn.utils.clip_grad_norm_" in chains["torch"]
    asked = {package: sorted(names) for package, names in chains.items()}
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, json.dumps(asked)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_a_module_that_a_plain_import_does_not_bring_is_asked_for():
    source = "import torch\nimport torch.fx.experimental\ntorch.a.b.c()\ntorch.fx.experimental.d\nother.e.f"
    assert chains_in(ast.parse(source)) == {"torch.a.b.c", "torch.a.b", "torch.a", "torch.fx", "torch.fx.experimental"}
