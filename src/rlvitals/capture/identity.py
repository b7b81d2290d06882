"""What a run's identity card says of its surroundings: versions, git commit, host, command. Nothing secret."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.masking import Masking

REPORTED_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "peft",
    "datasets",
    "vllm",
    "sglang",
    "deepspeed",
    "ray",
    "verl",
    "openrlhf",
    "roll",
    "jax",
    "flax",
    "mlx",
    "numpy",
    "unsloth",
)


def packages() -> dict[str, str]:
    """Versions of the field's packages this process has imported already; nothing is imported to find out."""
    found = {}
    for name in REPORTED_PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def python_version() -> str:
    """Of the running interpreter."""
    return platform.python_version()


def platform_name() -> str:
    """Operating system and processor."""
    return f"{sys.platform} {platform.machine()}"


def command(settings: Mapping[str, Any]) -> str:
    """The command line; secrets, the settings' own too, are masked."""
    return Masking.of(settings).command(getattr(sys, "argv", []))[:2000]


def git(start: Path | None = None) -> dict[str, str]:
    """Commit and branch of the repository around the working directory, read from its files; empty outside of one.

    The git program is not run: it may be missing, slow on a network disk, or refuse another user's repository.
    """
    try:
        folder = (start or Path.cwd()).resolve()
        for candidate in (folder, *folder.parents):
            if (candidate / ".git").exists():
                return _head(candidate / ".git")
    except (OSError, ValueError):
        pass
    return {}


def _head(git_path: Path) -> dict[str, str]:
    if git_path.is_file():  # a worktree or submodule points at its directory
        target = git_path.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        git_path = (git_path.parent / target).resolve()
    common = git_path / "commondir"
    shared = (git_path / common.read_text(encoding="utf-8").strip()).resolve() if common.exists() else git_path
    head = (git_path / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return {"commit": head}
    reference = head.removeprefix("ref:").strip()
    branch = reference.removeprefix("refs/heads/")
    for base in (git_path, shared):
        if (base / reference).exists():
            return {"commit": (base / reference).read_text(encoding="utf-8").strip(), "branch": branch}
    packed = shared / "packed-refs"
    for line in packed.read_text(encoding="utf-8").splitlines() if packed.exists() else []:
        commit, _, name = line.partition(" ")
        if name == reference:
            return {"commit": commit, "branch": branch}
    return {"branch": branch}


def rank_from_environment() -> int:
    """The rank a launcher gave this process; 0 where there is one process."""
    for world, rank in (
        ("WORLD_SIZE", "RANK"),
        ("SLURM_NTASKS", "SLURM_PROCID"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ):
        size, number = os.environ.get(world, ""), os.environ.get(rank, "")
        if size.isdecimal() and number.isdecimal() and int(size) > 1:
            return int(number)
    return 0
