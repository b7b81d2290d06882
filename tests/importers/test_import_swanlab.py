"""Experiments of a SwanLab server, fetched by the real client. The server answers the requests of the swanlab 0.10
client in the forms that it reads (pages of runs and keys, the export of sixteen metrics as one wide CSV).
"""

from __future__ import annotations

import json
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from brought import folders, points, rows

from rlvitals.cli.main import main
from rlvitals.importers.trackers import base
from rlvitals.views.run import open_run

pytest.importorskip("swanlab", reason="swanlab is not installed: pip install 'rlvitals[swanlab]'")

pytestmark = pytest.mark.slow

KEY = "swanlabkey0123456789"
START = 1_763_190_000_000
ODD = {3: math.nan, 4: math.inf, 5: -math.inf}


class SwanLab:
    """A server with one project. The next `broken` exports return no file."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.histories: dict[str, dict[str, list[tuple[int, int, float]]]] = {}
        self.exports: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.broken = 0
        self.refuses = False
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                sent = json.loads(body) if body else {}
                path = self.path.removeprefix("/api")
                served.asked.append(path)
                status, answer = served.answer(path, sent, self.headers.get("authorization"))
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, run_id: str, name: str, state: str, histories: dict[str, list[tuple[int, int, float]]]) -> None:
        self.runs.append(
            {
                "cuid": run_id, "slug": run_id, "name": name, "state": state,
                "description": "a note" if name == "a" else "", "labels": [{"name": "rl"}],
                "createdAt": f"2026-01-0{len(self.runs) + 1}T00:00:00.000Z",
                "finishedAt": "2026-01-09T00:00:00.000Z" if state == "FINISHED" else None, "cluster": "", "job": "",
            }
        )  # fmt: skip
        self.histories[run_id] = histories

    def answer(self, path: str, sent: dict[str, Any], key: str | None) -> tuple[int, Any]:
        if path == "/login/api_key":
            if key != KEY or self.refuses:
                return 401, {"code": "Unauthorized", "message": "no such key"}
            return 200, {
                "sid": "s",
                "expiredAt": "2030-01-01T00:00:00.000Z",
                "userInfo": {"username": "me", "name": "Me"},
            }
        if path == "/project/me/grpo":
            return 200, {"cuid": "P1", "name": "grpo"}
        if listed := re.fullmatch(r"/project/me/grpo/runs\?.*page=(\d+).*", path):
            page = int(listed[1])
            return 200, {
                "list": self.runs[2 * page - 2 : 2 * page],
                "total": len(self.runs),
                "pages": -(-len(self.runs) // 2),
            }
        if one := re.fullmatch(r"/project/me/grpo/runs/(\w+)", path):
            found = next((run for run in self.runs if run["cuid"] == one[1]), None)
            config = {
                "lr": {"value": 1e-5, "desc": "", "sort": 0},
                "hf_token": {"value": "hf_abcdefghijklmnopqrstuvwxyz0123"},
            }
            return (
                (200, {**found, "profile": {"config": config}})
                if found
                else (404, {"code": "Not_Found", "message": "no"})
            )
        if path == "/house/metrics/scalar/keys":
            keys = sorted(self.histories[sent["experiments"][0]["experimentId"]])
            begin = int(sent["cursor"] or 0)
            return 200, {
                "keys": keys[begin : begin + 10],
                "hasMore": begin + 10 < len(keys),
                "nextCursor": str(begin + 10),
            }
        if path == "/house/metrics/scalar/value":
            return 200, [{"key": column["key"]} for column in sent["columns"]]
        if path == "/house/metrics/scalar/export":
            name = f"export-{len(self.exports)}"
            self.exports[name] = self._csv(sent["columns"])
            return 200, {"cosKey": name}
        if path == "/files/presigned/get":
            return 200, {"urls": [f"{self.url}/download/{name}" for name in sent["paths"]]}
        if path.startswith("/download/"):
            if self.broken:
                self.broken -= 1
                return 404, b""
            return 200, self.exports[path.removeprefix("/download/")]
        return 404, {"code": "Not_Found", "message": path}

    def _csv(self, columns: list[dict[str, Any]]) -> bytes:
        kept = [
            {step: (time, value) for step, time, value in self.histories[one["experimentId"]][one["key"]]}
            for one in columns
        ]
        head = [
            "step",
            *(f"{one['experimentName']}-{one['key']}_{what}" for one in columns for what in ("step", "timestamp")),
        ]
        lines = [",".join(head)]
        for step in sorted({step for one in kept for step in one}):
            cells = [f"{one[step][1]!r},{one[step][0]}" if step in one else "," for one in kept]
            lines.append(",".join([str(step), *cells]))
        return "\n".join(lines).encode() + b"\n"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "home"))
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)
    monkeypatch.setattr(base, "FIRST_WAIT", 0.01)
    served = SwanLab()
    many = {f"metric/{n}": [(i, START + i, n + i / 3) for i in range(30)] for n in range(30)}  # more than one export
    loss = [(i, START + 1000 * i, ODD.get(i, 1 / (1 + i))) for i in range(20)]
    evaluated = [(i, START + 1000 * i + 500, i / 20) for i in (0, 10)]
    served.add("c1", "a", "FINISHED", {"loss": loss, "eval/accuracy": evaluated, "__swanlab__.cpu.pct": loss[:2]})
    served.add("c2", "../../evil", "RUNNING", many)
    served.add("c3", "c", "CRASHED", {"loss": [(i, START + i, i / 7) for i in range(6000)]})
    yield served
    served.close()


def test_a_project_comes_with_every_point_and_goes_on(server, tmp_path, capsys):
    server.broken = 1  # the client suppresses it and returns no points: rlvitals asks again
    address = f"swanlab:{server.url}#me/grpo"
    assert main(["import", address, "--to", str(tmp_path / "runs"), "--json"]) == 0
    facts = {one["name"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: (one["rows"], one["eval_rows"], one["samples"]) for name, one in facts.items()} == {
        "a": (20, 2, 2), "../../evil": (30, 0, 0), "c": (6000, 0, 0),
    }  # fmt: skip
    found = folders(tmp_path / "runs")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["runs"]
    assert points(found["a"], "loss") == [
        (i, (START + 1000 * i) / 1000, repr(float(ODD.get(i, 1 / (1 + i))))) for i in range(20)
    ]
    assert points(found["a"], "eval/accuracy", "eval") == [
        (i, (START + 1000 * i + 500) / 1000, repr(i / 20)) for i in (0, 10)
    ]
    assert len(rows(found["a"], "system")) == 2
    for n in range(30):
        assert points(found["../../evil"], f"metric/{n}") == [
            (i, (START + 0) / 1000 + i / 1000, repr(n + i / 3)) for i in range(30)
        ]
    assert points(found["c"], "loss") == [(i, (START + i) / 1000, repr(i / 7)) for i in range(6000)]
    view = open_run(found["a"])
    assert (view.config["lr"], view.config["hf_token"], view.info.status) == (1e-5, "***", "finished")
    assert view.config["rlvitals"]["tracker"]["note"] == "a note"
    assert open_run(found["c"]).info.status == "failed"

    server.histories["c2"]["metric/0"].append((30, START + 30, 0.5))
    server.asked.clear()
    assert main(["import", address, "--to", str(tmp_path / "runs"), "--json"]) == 0
    facts = {one["name"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: one["result"] for name, one in facts.items()} == {
        "a": "unchanged", "../../evil": "continued", "c": "unchanged",
    }  # fmt: skip
    assert server.asked.count("/house/metrics/scalar/export") == 2
    assert points(found["../../evil"], "metric/0")[-1] == (30, (START + 30) / 1000, "0.5")
    assert len(rows(found["../../evil"])) == 31
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()


def test_points_that_never_come_are_an_error_and_not_a_gap(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(base, "TRIES", 3)
    server.broken = 1000
    assert main(["import", f"swanlab:{server.url}#me/grpo/c1", "--to", str(tmp_path / "run")]) == 64
    assert "the server gives no points of" in capsys.readouterr().err
    server.broken = 0
    assert main(["import", f"swanlab:{server.url}#me/grpo/c1", "--to", str(tmp_path / "run")]) == 0
    assert len(rows(tmp_path / "run")) == 20


def test_logins_and_runs_that_are_not_there(server, tmp_path, capsys, monkeypatch):
    assert main(["import", f"swanlab:{server.url}#me/grpo/none", "--to", str(tmp_path / "run")]) == 64
    assert "the run cannot be fetched" in capsys.readouterr().err
    assert main(["import", f"swanlab:{server.url}#grpo", "--to", str(tmp_path / "run")]) == 64
    assert "Write swanlab:USER/PROJECT or swanlab:USER/PROJECT/RUN" in capsys.readouterr().err
    server.refuses = True
    assert main(["import", f"swanlab:{server.url}#me/grpo", "--to", str(tmp_path / "run")]) == 64
    output = capsys.readouterr()
    assert "Log in with 'swanlab login', or set SWANLAB_API_KEY" in output.err
    assert KEY not in output.err + output.out
    monkeypatch.delenv("SWANLAB_API_KEY")
    assert main(["import", f"swanlab:{server.url}#me/grpo", "--to", str(tmp_path / "run")]) == 64
    assert "No API key found" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
