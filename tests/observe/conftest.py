import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lightning_sm._observe import mlflow as mlflow_logger
from lightning_sm._observe import report_writer
from tests.helpers.processes import free_port

# Loopback only.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


class Proxy:
    """Stands between a client and the MLflow server: it counts requests, and answers as a server in trouble does."""

    def __init__(self, server):
        self.requests = []
        self.down = False
        self.denied = ""
        self.seconds = 0.0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def handle_request(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path, dict(self.headers)))
                time.sleep(proxy.seconds)
                if proxy.down:
                    self.close_connection = True
                    return
                if proxy.denied:
                    self.answer(403, proxy.denied.encode())
                    return
                headers = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
                request = urllib.request.Request(server + self.path, body or None, headers, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=60) as response:
                        self.answer(response.status, response.read())
                except urllib.error.HTTPError as error:
                    self.answer(error.code, error.read())

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def count(self, ending):
        return sum(path.partition("?")[0].endswith(ending) for _, path, _ in self.requests)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    """The address of a real MLflow server with an empty database."""
    pytest.importorskip("mlflow.server", reason="an MLflow server needs the package mlflow")
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/runs.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}/health", folder / "log.txt", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _wait(url, log, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no MLflow server: {log.read_text()[-3000:]}")


@pytest.fixture
def proxy(mlflow_server):
    """The server behind a proxy of this test's own, which can take it away."""
    found = Proxy(mlflow_server)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def fresh_loggers():
    """Count the loggers of each test from the first, as each start of a job does."""
    mlflow_logger._loggers.clear()


@pytest.fixture(autouse=True)
def no_report_writers(monkeypatch):
    """What a test leaves is not written when pytest ends."""
    monkeypatch.setattr(report_writer, "_writers", {"": None})
