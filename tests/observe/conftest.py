import contextlib
import os
import sys

import pytest

from lightning_sm._observe import names, report_writer
from tests.helpers.processes import free_port, server
from tests.helpers.s3 import FailingProxy

# Loopback only.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    """The address of a real MLflow server with an empty database."""
    pytest.importorskip("mlflow.server", reason="an MLflow server needs the package mlflow")
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/runs.db", "--artifacts-destination", f"{folder}/artifacts"]
    environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    address = f"http://127.0.0.1:{port}"
    with open(folder / "log.txt", "wb") as log, server(command, f"{address}/health", log, cwd=folder, env=environ):
        yield address


@pytest.fixture
def proxy(mlflow_server):
    """The server behind a proxy of this test's own, which can take it away."""
    with contextlib.closing(FailingProxy(int(mlflow_server.rpartition(":")[2]))) as found:
        yield found


@pytest.fixture(autouse=True)
def own_process(monkeypatch):
    """Loggers are counted from the first, as in each start of a job, and no report is left to be written at the end."""
    names._given.clear()
    monkeypatch.setattr(report_writer, "_writers", {"": None})
