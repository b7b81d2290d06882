"""The optional reactions of `check --follow` to a critical finding: a command, a file, a webhook, a signal.

Each is tried once per finding; the signal is sent only for the first one. A failure is printed on stderr and does not
end the watch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rlvitals.codec import to_json
from rlvitals.errors import ConfigError
from rlvitals.guard import guarded, words_of
from rlvitals.health.notify import Webhook, sentinel
from rlvitals.records import Finding
from rlvitals.store.files import put_file
from rlvitals.store.process import Handle
from rlvitals.terminal import warn

SIGNALS = ("TERM", "INT", "USR1")
END_SECONDS = 10.0
"""At the end, the longest wait for the webhook, and for each running command."""

Reaction = Callable[[Finding, str], None]
"""Called with a critical finding and the path of the log it is about."""


class Reactions:
    """The reactions that were requested on the command line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._reactions: list[Reaction] = []
        self._commands: list[subprocess.Popen[bytes]] = []
        self._command_output = 2 if arguments.json else None  # with --json, stdout contains only JSON lines
        if arguments.on_critical is not None:
            self._reactions.append(self._command(arguments.on_critical))
        if arguments.sentinel is not None:
            self._reactions.append(_sentinel(Path(arguments.sentinel)))
        self._webhook = _webhook(arguments.webhook) if arguments.webhook is not None else None
        if self._webhook is not None:
            self._reactions.append(self._post)
        if arguments.signal is not None:
            self._reactions.append(_signal(arguments.signal))

    def react(self, finding: Finding, source: str) -> None:
        """Run all requested reactions."""
        for reaction in self._reactions:
            with guarded(lambda error: _warn(words_of(error))):  # the watch continues whatever a user's command does
                reaction(finding, source)

    def tend(self) -> None:
        """Report commands that ended with a non-zero exit code."""
        for command in [item for item in self._commands if item.poll() is not None]:
            self._commands.remove(command)
            if command.returncode:
                _warn(f"the command of --on-critical ended with {command.returncode}")

    def end(self) -> None:
        """Wait a short time for running commands and unsent posts. Commands are not stopped."""
        if self._webhook is not None:
            self._webhook.close(END_SECONDS)
        for command in self._commands:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(END_SECONDS)
        self.tend()

    def _post(self, finding: Finding, source: str) -> None:
        if self._webhook is not None:
            self._webhook.post(Path(source).name, finding)

    def _command(self, text: str) -> Reaction:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"--on-critical {text!r} cannot be read as a command: {error}") from error
        if not words:
            raise ConfigError("--on-critical needs a command")

        def run(finding: Finding, source: str) -> None:
            try:
                command = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=self._command_output,
                    env={**os.environ, **_variables(finding, source)},
                )
            except OSError as error:
                _warn(f"cannot run {words[0]!r}: {error.strerror or error}")
                return
            self._commands.append(command)
            with contextlib.suppress(BrokenPipeError), command.stdin or contextlib.nullcontext() as pipe:
                if pipe is not None:
                    pipe.write(to_json({"source": source, **asdict(finding)}))

        return run


def _variables(finding: Finding, source: str) -> dict[str, str]:
    values = {
        "SOURCE": source,
        "RULE": finding.rule,
        "KIND": finding.kind,
        "SEVERITY": finding.severity,
        "STEP": str(finding.step),
        "ONSET_STEP": str(finding.onset_step),
        "TITLE": finding.title,
        "ACTION": finding.action,
    }
    return {f"RLVITALS_{name}": value.replace("\0", "") for name, value in values.items()}


def _sentinel(path: Path) -> Reaction:
    def write(finding: Finding, source: str) -> None:
        try:
            put_file(path.expanduser(), sentinel(Path(source).name, finding))
        except OSError as error:
            _warn(f"cannot write the sentinel {path}: {error.strerror or error}")

    return write


def _webhook(given: str) -> Webhook:
    """The address is a secret: it may be given as `${env:NAME}`, and no message contains it."""
    variable = re.fullmatch(r"\$\{env:(\w+)\}", given)
    url = os.environ.get(variable[1], "") if variable else given
    if not re.match(r"https?://[^/\s]", url):
        named = f"the variable {variable[1]}" if variable else "--webhook"
        raise ConfigError(f"{named} must hold an address that begins with http:// or https://")
    return Webhook(url, warn=_warn)


def _signal(text: str) -> Reaction:
    handle, pid, name = _target(text)
    number = getattr(signal, f"SIG{name}")
    sent = False

    def send(finding: Finding, source: str) -> None:
        nonlocal sent
        if sent:
            return
        sent = True
        try:
            handle.send(number)
        except ProcessLookupError:
            _warn(f"process {pid} is gone already: no signal was sent")
        else:
            _warn(f"sent {name} to process {pid}")

    return send


def _target(text: str) -> tuple[Handle, int, str]:
    """A handle on the process, its pid and the signal's name. Raises ConfigError unless this user owns the process."""
    number, _, name = text.partition(":")
    name = (name or "TERM").upper().removeprefix("SIG")
    if not number.isdecimal() or name not in SIGNALS:
        raise ConfigError(f"--signal {text}: write PID or PID:NAME, with one of {', '.join(SIGNALS)}")
    if os.name == "nt":  # os.kill ends the process on Windows, whatever the signal
        raise ConfigError(f"--signal {text}: this system has no signals")
    pid = int(number)
    if pid <= 1 or pid == os.getpid():
        raise ConfigError(f"--signal {text}: that is not a training process")
    try:
        handle = Handle(pid)  # opened first, so that the checks are about the process that gets the signal
        handle.send(0)
        owner = Path(f"/proc/{pid}").stat().st_uid if Path("/proc/self").exists() else os.getuid()
    except PermissionError:
        owner = -1
    except (ProcessLookupError, FileNotFoundError, OverflowError):
        raise ConfigError(f"--signal {text}: there is no process {pid}") from None
    if owner != os.getuid():
        raise ConfigError(f"--signal {text}: process {pid} belongs to another user")
    return handle, pid, name


def _warn(text: str) -> None:
    warn(f"rlvitals: {text}")
