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
    found = FailingProxy(int(mlflow_server.rpartition(":")[2]))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def fresh_loggers():
    """Count the loggers of each test from the first, as each start of a job does."""
    names._given.clear()


@pytest.fixture(autouse=True)
def no_report_writers(monkeypatch):
    """What a test leaves is not written when pytest ends."""
    monkeypatch.setattr(report_writer, "_writers", {"": None})
