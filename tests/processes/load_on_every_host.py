"""Trains on two hosts, each with a checkpoint directory of its own under the same path, then loads what was saved.

Arguments: results folder, namespace.
"""

import ctypes
import importlib
import json
import os
import sys
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def mount_own(own, shared):
    """Let this process see its host's folder ``own`` at ``shared``."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWNS if os.geteuid() == 0 else _CLONE_NEWNS | _CLONE_NEWUSER
    results = [
        libc.unshare(flags),
        libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None),
        libc.mount(os.fsencode(own), os.fsencode(shared), None, ctypes.c_ulong(_MS_BIND), None),
    ]
    if any(results):
        raise OSError(ctypes.get_errno(), "cannot mount a folder for this process only")


def forbid_writing(shared):
    """Let this process only read at ``shared`` from now on, where :func:`mount_own` has mounted a folder."""
    flags = ctypes.c_ulong(_MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    if ctypes.CDLL(None, use_errno=True).mount(None, os.fsencode(shared), None, flags, None):
        raise OSError(ctypes.get_errno(), "cannot mount the folder anew")


def main(folder, namespace):
    own = Path(os.environ["SAGEMAKER_BASE_DIR"], "own")
    shared = Path(folder, "checkpoints")
    own.mkdir()
    shared.mkdir(exist_ok=True)
    mount_own(own, shared)

    import torch

    import lightning_sm
    from lightning_sm._export import load_file
    from lightning_sm.errors import CheckpointError
    from tests.helpers.tiny import loader, tiny_model, weights

    pl = importlib.import_module(namespace)
    model = tiny_model(pl)
    model.predict_step = lambda batch, *_: model.layers(batch[0])
    best = pl.callbacks.ModelCheckpoint(filename="best", monitor="val_loss", save_last=True)
    trainer = pl.Trainer(
        **lightning_sm.trainer_settings(
            sagemaker={"checkpoint_dir": str(shared), "export": False},
            callbacks=[best],
            accelerator="cpu",
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
    )
    trainer.fit(model, loader(), loader())
    rank = trainer.global_rank
    seen = {"hosts": trainer.num_nodes, "files": sorted(path.name for path in shared.glob("*.ckpt")), "saved": {}}
    for name in ("best", "last"):
        if rank == 0:
            model.load_state_dict(load_file(str(shared / f"{name}.ckpt"), weights_only=False)["state_dict"])
            seen["saved"][name] = weights(model)

    def load(run, path):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        try:
            run(model, loader(), ckpt_path=path)
        except CheckpointError as error:
            return {"error": str(error)}
        return {"weights": weights(model)}

    seen["best"] = load(trainer.test, "best")
    seen["last"] = load(trainer.validate, "last")
    seen["path"] = load(trainer.predict, os.path.relpath(best.best_model_path))
    if rank == 1:
        Path(best.best_model_path).write_bytes(b"of another training")
    seen["another version"] = load(trainer.test, "best")
    seen["files in the end"] = sorted(path.name for path in shared.glob("*.ckpt"))
    if rank == 1:
        for path in shared.iterdir():
            path.unlink()
        forbid_writing(shared)
    seen["read only"] = load(trainer.test, "best")
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
