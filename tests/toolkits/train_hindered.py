"""Trains with this package, but for a port that something else listens on, or on a host that does nothing."""

import argparse
import socket
import time

import lightning.pytorch as pl
from tiny import loader, tiny_model

import lightning_sm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--occupy", type=int, help="a port that something else listens on")
    parser.add_argument("--missing", help="a host that does nothing")
    options = parser.parse_args()
    if socket.gethostname() == options.missing:
        time.sleep(600)
    with socket.socket() as other:
        if options.occupy:
            other.bind(("", options.occupy))
            other.listen()
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = pl.Trainer(**lightning_sm.trainer_settings(accelerator="cpu", max_epochs=1, logger=False, **quiet))
        trainer.fit(tiny_model(pl), loader(), loader())


if __name__ == "__main__":
    main()
