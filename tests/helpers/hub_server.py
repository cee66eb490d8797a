"""A small server of the protocol of Hugging Face's hub, on this machine: repositories, commits, files."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    """Keeps commits, {file: content} each, of repositories by name."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        commits = self.repos.setdefault(repo, {})
        newest = dict(commits[list(commits)[-1]]) if commits else {}
        newest.update(files)
        oid = hashlib.sha1(repr(sorted(newest.items())).encode()).hexdigest()
        commits.pop(oid, None)
        commits[oid] = newest
        return oid


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments):
        """Say nothing."""

    def _answer(self, status=200, content=b"", **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            values = json.loads(body)
            repo = f"{values['organization']}/{values['name']}"
            self.server.repos.setdefault(repo, {})
            return self._answer(content={"url": f"{self.server.endpoint}/{repo}"})
        if self.path == "/api/validate-yaml":
            return self._answer(content={"errors": [], "warnings": []})
        _, _, _, organisation, name, action, *_ = self.path.split("/")
        repo = f"{organisation}/{name}"
        if action == "preupload":
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self._answer(content={"files": files})
        lines = [json.loads(line) for line in body.splitlines()]
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
        }
        oid = self.server.commit(repo, files)
        return self._answer(content={"commitUrl": f"{self.server.endpoint}/{repo}/commit/{oid}", "commitOid": oid})

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._info("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        if len(parts) < 5:
            return self._answer()
        organisation, name, _, revision, *file = parts
        found = self._find(f"{organisation}/{name}", revision)
        if found is None:
            return None
        oid, files = found
        content = files["/".join(file)]
        etag = hashlib.sha256(content).hexdigest()
        return self._answer(content=content, ETag=f'"{etag}"', **{"X-Repo-Commit": oid})

    do_HEAD = do_GET

    def _find(self, repo, revision):
        commits = self.server.repos.get(repo)
        if commits is None:
            return self._answer(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
        oid = list(commits)[-1] if revision == "main" and commits else revision
        if oid not in commits:
            return self._answer(404, {"error": "Invalid rev id"}, **{"X-Error-Code": "RevisionNotFound"})
        return oid, commits[oid]

    def _info(self, repo, revision):
        if (found := self._find(repo, revision)) is None:
            return
        oid, files = found
        siblings = [{"rfilename": name, "size": len(content), "blobId": "0"} for name, content in files.items()]
        self._answer(content={"_id": "1", "id": repo, "modelId": repo, "sha": oid, "siblings": siblings, "tags": []})


@contextmanager
def serve_hub(monkeypatch, cache):
    """The hub's library asks this server, and keeps files in the folder `cache`."""
    from huggingface_hub import constants, hf_api

    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hf_api.constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the tests ask no other
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
