"""A small W&B server for the real `wandb` client. It accepts the data that runs log (UpsertBucket, the file stream) and
answers the public API (Runs, Run, RunHistoryKeys, RunParquetHistory, HistoryPage, RunFullHistory).

The queries are those of wandb 0.31, as captured. The history comes from the uploaded lines, or, for steps below
`exported`, from a Parquet file as W&B exports it.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

KEY = "0123456789abcdef0123456789abcdef01234567"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was killed


class WandbServer:
    """Runs by (entity, project, name). `faults` are the statuses of the next answers."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.asked: list[str] = []
        self.variables: list[dict[str, Any]] = []
        self.faults: list[int] = []
        self.refuses_login = False
        self.lock = threading.Lock()
        self.hold_at: int | None = None
        """A HistoryPage from this step on is answered only after `released`."""
        self.holding, self.released = threading.Event(), threading.Event()
        self.unknown: list[str] = []
        self.files: dict[str, bytes] = {}
        """Files of runs, by name."""
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                status, answer = served.answer(self.path, body)
                self.send(status, json.dumps(answer).encode())

            def do_GET(self) -> None:
                if self.path.startswith("/file/"):
                    data = served.files.get(unquote(self.path.removeprefix("/file/")))
                    return self.send(404 if data is None else 200, data or b"")
                run = next((run for run in served.runs.values() if self.path.endswith(f"/{run['name']}.parquet")), None)
                return self.send(200 if run else 404, served.parquet(run) if run else b"")

            do_PUT = do_POST  # noqa: N815

            def send(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def run(self, entity: str, project: str, name: str) -> dict[str, Any]:
        with self.lock:
            return self.runs.setdefault(
                (entity, project, name),
                {
                    "entity": entity, "project": project, "name": name, "displayName": name, "state": "running",
                    "tags": [], "notes": None, "config": "{}", "summary": {}, "lines": [], "events": [], "exported": 0,
                    "heartbeatAt": "2026-01-01T00:00:00Z",
                },
            )  # fmt: skip

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if "file_stream" in path:
            return 200, self._take(path, json.loads(body))
        if not path.startswith("/graphql"):
            return 200, {}
        asked = json.loads(body)
        query, variables = asked["query"], asked.get("variables") or {}
        name = (re.search(r"(?:query|mutation)\s+(\w+)", query) or ["", ""])[1]
        with self.lock:
            self.asked.append(name)
            self.variables.append(variables)
            if self.faults and name not in ("Viewer", "ServerFeaturesQuery"):
                return self.faults.pop(0), {"errors": [{"message": "try later"}]}
        if self.refuses_login:
            return 401, {"errors": [{"message": "user is not logged in"}]}
        return 200, {"data": self._graphql(name, query, variables)}

    def _take(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        _, _, entity, project, name, *_ = path.split("/")
        run = self.run(entity, project, name)
        with self.lock:
            for kind, lines in (("wandb-history.jsonl", run["lines"]), ("wandb-events.jsonl", run["events"])):
                for line in body.get("files", {}).get(kind, {}).get("content", []):
                    lines.append(json.loads(line))
            for line in body.get("files", {}).get("wandb-summary.json", {}).get("content", []):
                run["summary"].update(json.loads(line))
            if body.get("complete"):
                run["state"] = "finished" if not body.get("exitcode") else "failed"
        return {}

    def _graphql(self, name: str, query: str, asked: dict[str, Any]) -> Any:
        if name in ("Viewer", "GetDefaultEntity"):
            teams = {"edges": [{"node": {"name": "team"}}]}
            return {
                "viewer": {"id": "V1", "entity": "team", "username": "me", "email": "", "flags": "{}", "teams": teams}
            }
        if name == "UpsertBucket":
            run = self.run(asked.get("entity") or "team", asked["project"], asked["name"])
            for ours, theirs in (
                ("displayName", "displayName"),
                ("notes", "notes"),
                ("config", "config"),
                ("tags", "tags"),
                ("group", "groupName"),
            ):
                if asked.get(theirs) is not None:
                    run[ours] = asked[theirs]
            project = {"name": run["project"], "entity": {"name": run["entity"]}}
            bucket = {"id": "UnVu", "name": run["name"], "displayName": run["displayName"], "config": run["config"]}
            bucket |= {"description": None, "sweepName": None, "project": project, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if name == "CreateRunFiles":
            files = [
                {"name": file, "uploadUrl": f"{self.url}/upload/{place}"} for place, file in enumerate(asked["files"])
            ]
            return {"createRunFiles": {"runID": "UnVu", "uploadHeaders": [], "files": files}}
        if name == "Runs":
            owned = [run for key, run in self.runs.items() if key[:2] == (asked["entity"], asked["project"])]
            begin = int(asked["cursor"] or 0)
            some = owned[begin : begin + 2]  # small pages, so the client has to ask again
            edges = [{"node": self._node(run, "summaryMetrics" in query), "cursor": str(begin + place + 1)}
                     for place, run in enumerate(some)]  # fmt: skip
            info = {"endCursor": str(begin + len(some)), "hasNextPage": begin + len(some) < len(owned)}
            if not owned:
                return {"project": None}
            return {"project": {"internalId": "1", "runCount": len(owned), "readOnly": False,
                                "runs": {"edges": edges, "pageInfo": info}}}  # fmt: skip
        if name == "RunFiles":
            nodes = [
                {"id": "F", "name": file, "url": f"{self.url}/file/{quote(file, safe='')}", "directUrl": None,
                 "md5": None, "sizeBytes": len(self.files[file]), "mimetype": "", "updatedAt": None}
                for file in asked["fileNames"] if file in self.files
            ]  # fmt: skip
            listed = {"edges": [{"node": node, "cursor": "1"} for node in nodes]}
            files = {**listed, "pageInfo": {"endCursor": "1", "hasNextPage": False}}
            return {"project": {"internalId": "1", "run": {"fileCount": len(nodes), "files": files}}}
        if name in ("Run", "RunHistoryKeys", "RunParquetHistory", "HistoryPage", "RunFullHistory"):
            run = self.runs.get(
                (asked["entity"], asked["project"], asked.get("name") or asked.get("run") or asked.get("runName"))
            )
            return {"project": {"run": None if run is None else self._of_run(name, query, asked, run)}}
        self.unknown.append(name or query[:200])
        return {}

    def _of_run(self, name: str, query: str, asked: dict[str, Any], run: dict[str, Any]) -> Any:
        if name == "Run":
            return self._node(run, True)
        if name == "RunHistoryKeys":
            return {"historyKeys": {"lastStep": max((line["_step"] for line in run["lines"]), default=-1), "keys": {}}}
        if name == "RunParquetHistory":
            urls = [f"{self.url}/{run['name']}.parquet"] if run["exported"] else []
            return {"parquetHistory": {"parquetUrls": urls, "liveData": [{"_step": run["exported"]}]}}
        if name == "HistoryPage":
            if self.hold_at is not None and asked["maxStep"] > self.hold_at:
                self.holding.set()
                self.released.wait(60)
            wanted = [line for line in run["lines"] if asked["minStep"] <= line["_step"] < asked["maxStep"]]
            return {"history": [json.dumps(line) for line in wanted[: asked["pageSize"]]]}
        return {"events": [json.dumps(line) for line in run["events"]]}

    def _node(self, run: dict[str, Any], is_full: bool) -> dict[str, Any]:
        node = {
            "projectId": "1", "id": "UnVu", "name": run["name"], "displayName": run["displayName"], "tags": run["tags"],
            "sweepName": None, "state": run["state"], "group": run.get("group"), "jobType": None,
            "commit": None, "readOnly": False,
            "createdAt": "2026-01-01T00:00:00Z", "heartbeatAt": run["heartbeatAt"], "description": None,
            "notes": run["notes"], "historyLineCount": len(run["lines"]), "user": {"name": "Me", "username": "me"},
        }  # fmt: skip
        if is_full:
            node |= {"config": run["config"], "summaryMetrics": json.dumps(run["summary"]), "systemMetrics": "{}",
                     "historyKeys": None}  # fmt: skip
        return node

    def parquet(self, run: dict[str, Any]) -> bytes:
        """The exported part of a history."""
        import pyarrow
        from pyarrow import parquet

        lines = [line for line in run["lines"] if line["_step"] < run["exported"]]
        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(lines), file)
        return file.getvalue()
