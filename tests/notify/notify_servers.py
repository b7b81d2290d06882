"""Real servers on loopback: one for HTTP with scripted answers, and one for SMTP."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import socketserver
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRETS = {
    "RLVITALS_SLACK_WEBHOOK": "services/T0SLACK/B0SLACK/slack-very-secret",
    "RLVITALS_DISCORD_WEBHOOK": "api/webhooks/4711/discord-very-secret",
    "RLVITALS_TELEGRAM_TOKEN": "123456:telegram-very-secret",
    "RLVITALS_TELEGRAM_CHAT": "-100200300",
    "RLVITALS_NTFY_URL": "ntfy-very-secret-topic",
    "RLVITALS_NTFY_TOKEN": "tk_ntfy-very-secret",
    "RLVITALS_PAGERDUTY_ROUTING_KEY": "pagerduty-very-secret-key",
    "RLVITALS_SMTP_USER": "smtp-very-secret-user",
    "RLVITALS_SMTP_PASSWORD": "smtp-very-secret-password",
    "RLVITALS_EMAIL_TO": "oncall-very-secret@example.org",
}
"""The secret parts of the environment variables: no file, message or argument may hold them."""


@dataclass
class Request:
    """One request as received."""

    method: str
    path: str
    headers: dict
    body: bytes = field(repr=False)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def parts(self):
        """The fields of a form, as an independent parser reads them: texts, and (file name, bytes)."""
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + self.body, policy=email.policy.HTTP)
        found = {}
        for part in message.iter_parts():
            name = part.get_param("name", header="content-disposition")
            data = part.get_payload(decode=True)
            found[name] = (part.get_filename(), data) if part.get_filename() else data.decode()
        return found


class Desk:
    """Accepts every request. It answers with the given statuses in turn, then with 200. A status may be a number, a
    tuple of number, headers and body, "hang" (no answer until released), or "drop" (the connection is closed).
    """

    def __init__(self, *statuses, answer=b"ok"):
        self.requests, self.statuses, self.answer = [], list(statuses), answer
        self.release = threading.Event()
        desk = self

        class Handler(BaseHTTPRequestHandler):
            def take(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                desk.requests.append(Request(self.command, self.path, dict(self.headers), body))
                status = desk.statuses.pop(0) if desk.statuses else 200
                if status == "hang":
                    desk.release.wait(20)
                    return
                if status == "drop":
                    self.connection.close()
                    return
                code, headers, answer = status if isinstance(status, tuple) else (status, {}, desk.answer)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_PUT = do_PATCH = do_GET = take  # noqa: N815 - the names http.server looks for

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.server.handle_error = lambda *_: None  # some tests disconnect the client on purpose
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


def environment(url, smtp_port=0):
    """The variables of all services, for servers at this address."""
    at_server = ("RLVITALS_SLACK_WEBHOOK", "RLVITALS_DISCORD_WEBHOOK", "RLVITALS_NTFY_URL")
    return {
        **{name: f"{url}/{value}" if name in at_server else value for name, value in SECRETS.items()},
        "RLVITALS_TELEGRAM_URL": url,
        "RLVITALS_PAGERDUTY_URL": url,
        "RLVITALS_SMTP_HOST": "127.0.0.1",
        "RLVITALS_SMTP_PORT": str(smtp_port or 9),
        "RLVITALS_SMTP_SECURITY": "none",
    }


class Mailbox:
    """An SMTP server: EHLO, STARTTLS, AUTH PLAIN, MAIL, RCPT, DATA. `answers` are given to DATA in turn."""

    def __init__(self, *answers, certificate=None, hangs=False):
        self.mails, self.logins, self.answers = [], [], list(answers)
        self.is_encrypted, self.envelopes = [], []
        self.release = threading.Event()
        box = self

        class Handler(socketserver.StreamRequestHandler):
            def reply(self, line):
                self.wfile.write(line.encode() + b"\r\n")

            def read_line(self):
                return self.rfile.readline().decode().strip()

            def handle(self):
                if hangs:
                    box.release.wait(20)
                    return
                self.reply("220 test")
                sender, recipients, is_secure = "", [], False
                while line := self.read_line():
                    verb = line.split(" ")[0].upper()
                    if verb == "EHLO":
                        offers = ["test", *(["STARTTLS"] if certificate and not is_secure else []), "AUTH PLAIN"]
                        for offer in offers[:-1]:
                            self.reply(f"250-{offer}")
                        self.reply(f"250 {offers[-1]}")
                    elif verb == "STARTTLS":
                        self.reply("220 go")
                        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                        context.load_cert_chain(*certificate)
                        self.request = context.wrap_socket(self.request, server_side=True)
                        self.setup_streams()
                        is_secure = True
                    elif verb == "AUTH":
                        box.logins.append(base64.b64decode(line.split(" ")[2]).decode().split("\0")[1:])
                        self.reply(
                            "235 welcome" if box.logins[-1][1] == SECRETS["RLVITALS_SMTP_PASSWORD"] else "535 no"
                        )
                    elif verb == "MAIL":
                        sender = line
                        self.reply("250 ok")
                    elif verb == "RCPT":
                        is_known = "nobody" not in line
                        recipients += [line] if is_known else []
                        self.reply("250 ok" if is_known else f"550 who is {line}")
                    elif verb == "DATA":
                        self.reply("354 go on")
                        lines = []
                        while (text := self.rfile.readline()) not in (b".\r\n", b""):
                            lines.append(text[1:] if text.startswith(b"..") else text)
                        answer = box.answers.pop(0) if box.answers else 250
                        if answer == 250:
                            box.envelopes.append((sender, recipients))
                            box.is_encrypted.append(is_secure)
                            box.mails.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))
                        self.reply(f"{answer} {'ok' if answer == 250 else 'no ' + SECRETS['RLVITALS_EMAIL_TO']}")
                    elif verb == "QUIT":
                        self.reply("221 bye")
                        return
                    else:
                        self.reply("250 ok")

            def setup_streams(self):
                self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", 0)

            def finish(self):
                super().finish()
                self.request.close()

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.server.handle_error = lambda *_: None  # some tests disconnect the client on purpose
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.port = self.server.server_address[1]

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


def make_certificate(folder):
    """Makes a certificate for 127.0.0.1 that only this test trusts. Returns the paths of certificate and key."""
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", paths[1], "-out", paths[0],
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return tuple(map(str, paths))
