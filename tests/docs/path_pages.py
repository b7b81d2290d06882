"""Runs the pages of docs/paths as a reader does: top to bottom, in an empty folder.

    python tests/docs/path_pages.py docs/paths/*.md     # runs the pages, and writes the outputs and pictures they show

A block with a title is written to a file of that name. A `bash` block is run line by line, and each command must exit
with code 0. The `text` block after it shows its output. A comment right before a block changes this:

    <!-- test: exit 2 -->                  the exit code of its last command
    <!-- test: not run: REASON -->         the block is not run
    <!-- test: instead: COMMAND -->        this command is run instead
    <!-- test: until WORDS -->             a server: the page continues once it prints WORDS, and stops it at the end
    <!-- test: first 9 lines -->           only the first lines of the output are shown
    <!-- test: numbers vary -->            the numbers in the output depend on the machine
    <!-- test: words vary -->              the output holds a model's text: only its first word is compared
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(
    r'(?:^<!-- test: (?P<note>[^\n]*) -->\n\n?)?^```(?P<language>\w*)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
SHELL = re.compile(r"[|&;<>$*`]|^\w+=")
"""A line with one of these needs a shell."""
INTO_FILE = re.compile(r"(?P<line>[^|&;<>]+) > (?P<file>[\w.-]+) 2>&1")
"""A line that writes its output and errors to a file. It needs no shell."""
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
CHART = re.compile(r"[⠀-⣿]")
PORT = re.compile(r"\b(?:8642|8655|8656|8765)\b")
"""Ports that pages name. Free ports replace them, because several tests may run on one machine."""
LONGEST_WAIT = 60.0


@dataclass
class Page:
    """One page while it runs: its folder, the environment that its lines export, and its servers."""

    path: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    printed: str = ""
    """What the last block printed."""
    ports: dict[str, str] = field(default_factory=dict)
    """Port named by the page -> port in use."""

    def run(self) -> Iterator[tuple[re.Match[str], str]]:
        """Runs the blocks. Yields each `text` block with the text that it should contain."""
        scripts = Path(sys.executable).parent
        self.environment = {
            **os.environ, "PYTHONIOENCODING": "utf-8", "TRL_EXPERIMENTAL_SILENCE": "1",
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "RLVITALS_CACHE": str(self.folder / ".cache"),
        }  # fmt: skip
        try:
            for block in BLOCK.finditer(self.path.read_text(encoding="utf-8")):
                if block["language"] == "text":
                    printed = self.printed
                    for named, used in self.ports.items():
                        printed = printed.replace(used, named)
                    yield block, shown(printed, block["note"] or "")
                else:
                    self._run(block)
        finally:
            for server in self.servers:
                server.terminate()
                server.wait()

    def _run(self, block: re.Match[str]) -> None:
        note = block["note"] or ""
        if block["file"]:
            (self.folder / block["file"]).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block["file"]).write_text(self._with_ports(block["text"]), encoding="utf-8")
            return
        if note.startswith("not run: ") and len(note) > 20:
            return
        assert block["language"] == "bash", f"{self.path.name}: a block that is neither a file nor run:\n{block[0]}"
        text = note.removeprefix("instead: ") if note.startswith("instead: ") else block["text"]
        wanted = int(note.removeprefix("exit ")) if note.startswith("exit ") else 0
        self.printed, code = "", 0
        text = self._with_ports(text)
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[:2] == ["pip", "install"]:
                check_installed(words[2:])
            elif words[0] == "export":
                self.environment |= dict([words[1].split("=", 1)])
            elif note.startswith("until "):
                is_default = words[:2] == ["rlvitals", "serve"] and "--port" not in words
                port = ["--port", self._with_ports("8642")] if is_default else []
                self._serve([*words, *port], note.removeprefix("until "))
            else:
                code, printed = self._call(line, words)
                self.printed += printed
                is_last = wanted and line == text.rstrip().splitlines()[-1]
                assert code == (wanted if is_last else 0), f"{self.path.name}: {line}\nexit code {code}\n{printed}"

    def _with_ports(self, text: str) -> str:
        for named in PORT.findall(text):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.ports.setdefault(named, str(probe.getsockname()[1]))
        return PORT.sub(lambda found: self.ports[found[0]], text)

    def _call(self, line: str, words: list[str]) -> tuple[int, str]:
        if into := INTO_FILE.fullmatch(line):
            code, printed = self._call(into["line"], shlex.split(into["line"]))
            (self.folder / into["file"]).write_text(printed, encoding="utf-8")
            return code, "" if code == 0 else printed
        command = ["bash", "-c", line] if SHELL.search(line.partition(" #")[0]) else as_python(words)
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    def _serve(self, words: list[str], until: str) -> None:
        said = self.folder / f".server-{len(self.servers)}"
        with said.open("w") as out:
            server = subprocess.Popen(
                as_python(words), cwd=self.folder, env={**self.environment, "PYTHONUNBUFFERED": "1"}, text=True,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.servers.append(server)
        deadline = time.monotonic() + LONGEST_WAIT
        while until not in said.read_text():
            assert server.poll() is None, f"{self.path.name}: {' '.join(words)} ended:\n{said.read_text()}"
            assert time.monotonic() < deadline, f"{self.path.name}: {' '.join(words)} did not say {until!r}"
            time.sleep(0.02)
        self.printed = said.read_text()


def as_python(words: list[str]) -> list[str]:
    """The same command as a module of this interpreter, which a process with torch already imported can run."""
    known = {"rlvitals": [sys.executable, "-m", "rlvitals.cli.main"], "python": [sys.executable]}
    return [*known[words[0]], *words[1:]] if words[0] in known else words


def check_installed(words: list[str]) -> None:
    """Checks that a package which a page installs exists here and has the extras that the page names."""
    from importlib.metadata import distribution

    from packaging.requirements import Requirement

    for word in words:
        asked = Requirement(word)
        known = {extra.lower() for extra in distribution(asked.name).metadata.get_all("Provides-Extra") or ()}
        assert asked.extras <= known, f"{asked.name} has no extra {asked.extras - known}"


def shown(printed: str, note: str) -> str:
    """The output as a page shows it."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    if cut := re.search(r"first (\d+) lines", note):
        count = int(cut[1])
        lines = [*lines[:count], *(["..."] if len(lines) > count else [])]
    return "".join(f"{line}\n" for line in lines)


def same(page: str, real: str, note: str) -> bool:
    """Whether a page shows the real output. Where numbers vary, numbers and charts are not compared."""
    if "words vary" in note:
        return page.split()[:1] == real.split()[:1] != []
    if "numbers vary" in note:
        page, real = (" ".join(CHART.sub("", NUMBER.sub("N", text)).split()) for text in (page, real))
    return page == real


def main() -> None:
    """Update the outputs and pictures that the pages show."""
    for path in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            text = path.read_text(encoding="utf-8")
            for block, real in Page(path.resolve(), Path(folder)).run():
                if not same(block["text"], real, block["note"] or ""):
                    text = text.replace(block[0], block[0].replace(f"```text\n{block['text']}", f"```text\n{real}"), 1)
            path.write_text(text, encoding="utf-8")
            for picture in Path(folder).glob("*.png"):
                save(picture, path.parent.parent / "images" / f"path-{path.stem}.png")


def save(picture: Path, target: Path) -> None:
    """Save the picture of a page's command, small enough for a repository."""
    from PIL import Image

    image = Image.open(picture).convert("RGB")
    image = image.resize((1240, image.height * 1240 // image.width), Image.Resampling.LANCZOS)
    image.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main()
