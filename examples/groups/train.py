"""A job of two instance groups: hosts with CPUs prepare batches and serve them, hosts with GPUs train.

SageMaker starts this script on every host. The distribution is for the group ``train`` only, so that the other hosts
have no ranks; they serve until the training has ended. On a laptop the same script prepares its batches itself.
"""

import io
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Iterator, Sequence, Tuple

import lightning.pytorch as pl  # or: import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

import lightning_sm

PORT = 8000
BATCHES = 64


def prepare(index: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """A batch; a project decodes and augments images here, which takes more CPUs than hosts with GPUs have."""
    inputs = torch.rand(16, 1, generator=torch.Generator().manual_seed(index)) * 6 - 3
    return inputs, inputs.sin()


class Handler(BaseHTTPRequestHandler):
    """Answers ``GET /INDEX`` with a batch, and ends the server on ``DELETE``."""

    def do_GET(self) -> None:
        content = io.BytesIO()
        torch.save(prepare(int(self.path.strip("/"))), content)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content.getvalue())

    def do_DELETE(self) -> None:
        self.send_response(200)
        self.end_headers()
        threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *arguments: object) -> None:
        """No line for each batch."""


def request(method: str, host: str, path: str = "", patience: float = 300.0) -> bytes:
    """Ask a server, which may start later than this host; ``patience`` is in seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            asked = urllib.request.Request(f"http://{host}:{PORT}/{path}", method=method)
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


class Batches(IterableDataset):
    """The batches of one rank, from the servers in turn."""

    def __init__(self, servers: Sequence[str], rank: int, world_size: int) -> None:
        self.servers, self.indices = servers, range(rank, BATCHES, world_size)

    def __iter__(self) -> Iterator[Any]:
        for index in self.indices:
            if not self.servers:
                yield prepare(index)
                continue
            yield torch.load(io.BytesIO(request("GET", self.servers[index % len(self.servers)], str(index))))


class Regression(pl.LightningModule):
    def __init__(self, servers: Sequence[str]) -> None:
        super().__init__()
        self.servers = servers
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Batches(self.servers, self.global_rank, self.trainer.world_size), batch_size=None)

    def training_step(self, batch, batch_index):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main() -> None:
    """Serve on the hosts of other groups than the distribution's; train on the others."""
    job = lightning_sm.job()
    if job.distribution_groups and job.current_group_name not in job.distribution_groups:
        with ThreadingHTTPServer(("", PORT), Handler) as server:
            print(f"serving batches on {job.current_host}", flush=True)
            server.serve_forever()
        print("the training has ended", flush=True)
        return
    servers = [host for host in job.hosts if host not in job.world_hosts]
    trainer = pl.Trainer(**lightning_sm.trainer_settings(max_epochs=3))
    try:
        trainer.fit(Regression(servers))
    finally:
        for host in servers if trainer.is_global_zero else ():
            request("DELETE", host, patience=30.0)


if __name__ == "__main__":
    main()
