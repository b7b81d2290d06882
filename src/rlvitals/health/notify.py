"""Notifications of a finding: a banner for the terminal, a webhook, a file that schedulers look for. The services that
people read (Slack, e-mail, ...) are in `rlvitals.notify`.

A webhook's address is a secret: no message, error or file of rlvitals contains it. A post contains the run's name, the
step, the severity, the title and the advice; no host, no user, no paths. A daemon thread with a bounded queue sends the
posts, so training never waits for them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvitals.codec import encode, to_json
from rlvitals.guard import Once, guarded
from rlvitals.records import SEVERITIES, Finding
from rlvitals.terminal import cut_middle, logger, visible
from rlvitals.webhook import Sending, send

BANNER_WIDTH = 61
TIMEOUT_SECONDS = 5.0
TRIES = 3
BACK_OFF_SECONDS = 1.0
"""The wait before the second try; it doubles before each further one."""

QUEUE_LENGTH = 64
JSON_HEADERS = {"Content-Type": "application/json; charset=utf-8"}
DISCORD_LENGTH = 2000


def banner(finding: Finding, encoding: str | None = "utf-8") -> str:
    """The banner a terminal shows, in ASCII where the stream cannot encode the warning sign.

    >>> found = Finding("m", "margin_inversion", "critical", 25, 20, "Very negative margin", advice=("reduce the LR",))
    >>> print(banner(found, "ascii"))
    !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!
      ! Very negative margin
      Consider: reduce the LR
    !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!
    """
    edge = "!" * BANNER_WIDTH
    lines = [f"  ⚠ {cut_middle(visible(finding.title))}"]
    if finding.advice:
        lines.append(f"  Consider: {cut_middle(visible(finding.advice[0]))}")
    text = "\n".join((edge, *lines, edge))
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = text.replace("⚠", "!").encode("ascii", "replace").decode()
    return text


def format_of(url: str) -> str:
    """The message format of a webhook, inferred from its host.

    >>> format_of("https://hooks.slack.com/services/T/B/x"), format_of("https://example.org/hook")
    ('slack', 'json')
    """
    from urllib.parse import urlsplit

    host = (urlsplit(url).hostname or "").lower()
    if host == "hooks.slack.com":
        return "slack"
    if host in ("discord.com", "discordapp.com") or host.endswith((".discord.com", ".discordapp.com")):
        return "discord"
    return "json"


def message(run_name: str, finding: Finding, shape: str) -> dict[str, Any]:
    """The message to post."""
    if shape == "json":
        return {
            "run": run_name,
            "step": finding.step,
            "severity": finding.severity,
            "title": finding.title,
            "advice": list(finding.advice),
        }
    lines = [f"{finding.severity.upper()} in {run_name} at step {finding.step}: {finding.title}"]
    lines += [f"- {advice}" for advice in finding.advice]
    text = "\n".join(lines)
    if shape == "slack":
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    return {
        "content": text[:DISCORD_LENGTH],
        "allowed_mentions": {"parse": []},
    }  # a name such as @everyone notifies nobody


def sentinel(run_name: str, finding: Finding) -> bytes:
    """The content of a sentinel file."""
    return to_json({"run": run_name, "written": round(time.time(), 3), "finding": asdict(finding)})


class Webhook:
    """An address that findings are posted to. Its thread starts with the first of them. Never raises."""

    def __init__(
        self,
        url: str,
        shape: str | None = None,
        *,
        warn: Callable[[str], None] = logger.warning,
        timeout: float = TIMEOUT_SECONDS,
        back_off: float = BACK_OFF_SECONDS,
    ) -> None:
        self._url = url
        self._shape = shape or format_of(url)
        self._warn_once = Once(warn)
        self._timeout = timeout
        self._back_off = back_off
        self._waiting: queue.Queue[bytes] = queue.Queue(QUEUE_LENGTH)
        self._thread: threading.Thread | None = None

    def post(self, run_name: str, finding: Finding) -> None:
        """Pass a finding to the thread. If the queue is full, it is dropped with a warning."""
        try:
            self._waiting.put_nowait(encode(message(run_name, finding, self._shape)))
        except queue.Full:
            self._warn_once("the webhook is too slow: notifications are being dropped")
            return
        if self._thread is None:
            thread = threading.Thread(target=self._loop, name="rlvitals-webhook", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread is available, or the interpreter is shutting down
                self._warn_once("no thread could be started for the webhook")
                return
            self._thread = thread

    def close(self, seconds: float) -> None:
        """Wait up to this many seconds for posts that are not sent yet."""
        deadline = time.monotonic() + (seconds if self._thread is not None else 0)
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        if left := self._waiting.unfinished_tasks:
            self._warn_once(f"the webhook has not taken {left} notification{'s' if left > 1 else ''}")

    def _loop(self) -> None:
        while True:
            body = self._waiting.get()
            # Not the error's own text, which may contain the address.
            with guarded(lambda error: self._warn_once(f"the webhook cannot be reached: {type(error).__name__}")):
                self._deliver(body)
            self._waiting.task_done()

    def _deliver(self, body: bytes) -> None:
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(self._back_off * 2 ** (attempt - 1))
            reply = send(Sending(self._url, body, JSON_HEADERS), self._timeout)
            problem = reply.problem
            if not reply.may_help:
                break
        if problem:
            self._warn_once(f"the webhook did not accept a notification: {problem}")


class Notifier:
    """Sends findings of the required severity to the targets in the settings. Never raises."""

    def __init__(
        self,
        run_name: str,
        settings: Mapping[str, str],
        warn: Callable[[str], None] = logger.warning,
        *,
        put_file: Callable[[Path, bytes], None],
    ) -> None:
        """`settings` are those of `config.Settings.notify`: webhook, format, on, sentinel. `put_file` writes the
        sentinel, because `store` owns how a file is replaced atomically.
        """
        self._run_name = run_name
        self._least = SEVERITIES.index(settings.get("on", "critical"))
        self._sentinel = settings.get("sentinel")
        url = settings.get("webhook")
        self._webhook = Webhook(url, settings.get("format"), warn=warn) if url else None
        self._warn_once = Once(warn)
        self._put_file = put_file

    def notify(self, finding: Finding) -> None:
        """Post the finding and write the sentinel file, if it is severe enough."""
        if SEVERITIES.index(finding.severity) < self._least:
            return
        if self._webhook is not None:
            self._webhook.post(self._run_name, finding)
        if self._sentinel:
            try:
                self._put_file(Path(self._sentinel).expanduser(), sentinel(self._run_name, finding))
            except OSError as error:
                self._warn_once(
                    f"cannot write the sentinel {self._sentinel}: {error.strerror or error}", key="sentinel"
                )

    def close(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait for posts that are not sent yet."""
        if self._webhook is not None:
            self._webhook.close(seconds)


def open_notifier(
    run_name: str,
    settings: Mapping[str, Any],
    warn: Callable[[str], None] = logger.warning,
    *,
    put_file: Callable[[Path, bytes], None],
) -> Notifier | None:
    """The notifier for settings that name a webhook or a sentinel; None for others. The process beside the trainer
    notifies services (`to`).
    """
    wanted = {key: value for key, value in settings.items() if key in ("webhook", "format", "on", "sentinel")}
    return Notifier(run_name, wanted, warn, put_file=put_file) if wanted.keys() & {"webhook", "sentinel"} else None
