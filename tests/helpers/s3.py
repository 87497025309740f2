"""An S3 server on this machine (moto), and a proxy before a server that can fail for a while."""

import logging
import os
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Dict, List, Optional, Tuple
from unittest import mock

import pytest

__all__ = ["S3", "FailingProxy", "s3_server"]


class S3:
    """A running server with the bucket ``logs``, whose objects are read by their names.

    ``variables`` are the environment of what writes to it, and of what reads.
    """

    def __init__(self, port):
        import boto3

        self.port = port
        self.variables = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }
        with mock.patch.dict(os.environ, self.variables):
            self.client = boto3.Session().client("s3")
        self.client.create_bucket(Bucket="logs")

    def __getitem__(self, name: str) -> bytes:
        return self.client.get_object(Bucket="logs", Key=name)["Body"].read()

    def update(self, objects: Dict[str, bytes]) -> None:
        """Write objects by their names."""
        for name, content in objects.items():
            self.client.put_object(Bucket="logs", Key=name, Body=content)

    def names(self, prefix=""):
        """The names of the objects below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="logs", Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def folders(self, prefix=""):
        """The folders of all event files below a prefix."""
        return sorted({key.rpartition("/")[0] for key in self.names(prefix) if "tfevents" in key})


@contextmanager
def s3_server():
    """Start a server, with nothing of an earlier one, which the environment names. It has all of AWS's services."""
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    try:
        _, port = server.get_host_and_port()
        reset = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset, timeout=30).close()
        found = S3(port)
        with mock.patch.dict(os.environ, found.variables):
            yield found
    finally:
        server.stop()


class FailingProxy:
    """Passes requests on to a server while ``status`` is ``None``, else answers with that status; with 0 never.

    With -1 it closes the connection. Each answer takes ``seconds``; ``text`` is that of a refusal, by default S3's.
    """

    def __init__(self, port):
        self.status: Optional[int] = None
        self.refused, self.seconds = 0, 0.0
        self.text: Optional[str] = None
        # Command, path and headers of each.
        self.requests: List[Tuple[str, str, Dict[str, str]]] = []
        self.closed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path, dict(self.headers)))
                if proxy.status is not None:
                    proxy.refused += 1
                    if proxy.status == -1:
                        self.close_connection = True
                        return
                    if proxy.status == 0:
                        proxy.closed.wait(300)
                        return
                    code = {403: "AccessDenied", 503: "SlowDown"}[proxy.status]
                    text = proxy.text or f"<Error><Code>{code}</Code><Message>{code} here</Message></Error>"
                    self.respond(proxy.status, [("Content-Type", "application/xml")], text.encode())
                    return
                time.sleep(proxy.seconds)
                upstream = HTTPConnection("127.0.0.1", port, timeout=60)
                upstream.request(self.command, self.path, body, dict(self.headers))
                found = upstream.getresponse()
                self.respond(found.status, found.getheaders(), found.read())
                upstream.close()

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = answer

            def respond(self, status, headers, body):
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
