"""``SeriesSaver``: saves one fit into its series, when that is due, with what Lightning does not save."""

import os
import time
from copy import copy, deepcopy
from dataclasses import asdict
from typing import Any, Dict, Mapping, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import dump_checkpoint, saving_for_restart
from lightning_sm._lightning.collectives import broadcast, digest_of, gather_objects
from lightning_sm._lightning.csv_logs import csv_files
from lightning_sm._lightning.legacy import epochs_trained, logged_step, strategy_of
from lightning_sm._lightning.restart import SavePoint, loaders_of, mark_point, reload_epoch, repeats_loaders
from lightning_sm._lightning.strategies import shards_of
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.attributes import Attributes
from lightning_sm._resume.callback_files import note_checkpoints, states_with_scores
from lightning_sm._resume.choose import Choice
from lightning_sm._resume.data import describe_data
from lightning_sm._resume.gradients import unused_gradients
from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity
from lightning_sm._resume.model_state import found_by_searches, pruning_state
from lightning_sm._resume.optimizers import Description, describe_optimizers, parameters_beside_model
from lightning_sm._resume.ranks import removes_files
from lightning_sm._resume.record import CheckpointRecord
from lightning_sm._resume.series import STATE_KEY
from lightning_sm._resume.state import communication_states, on_cpu, rank_state
from lightning_sm._resume.storage import real_path

__all__ = ["SeriesSaver"]

# Saving may take a twentieth of the time between two saves.
_COST = 20
# Before a validation a save is due after this share of the interval, as who is stopped in it goes back to that save.
_BEFORE_VALIDATION = 0.1


class SeriesSaver:
    """Saves a fit from its first step on.

    Args:
        namespace: Lightning's namespace.
        choice: Where the saves of the fit go, and what is there.
        job: The program that trains.
        model: What it trains.
        criteria: What will end the fit.
        save_every: Seconds between two saves; with less than one second, at each opportunity.
        attributes: The attributes of the model and of callbacks.
        configured: The optimizers that ``configure_optimizers`` has returned when the fit began.
    """

    def __init__(
        self,
        namespace: Namespace,
        choice: Choice,
        job: ProgramIdentity,
        model: ModelIdentity,
        criteria: Mapping[str, Any],
        save_every: float,
        attributes: Attributes,
        configured: Description,
    ) -> None:
        self._namespace, self._series, self._save_every = namespace, choice.series, save_every
        self._attributes, self._configured = attributes, configured
        self._job, self._model, self._criteria = asdict(job), asdict(model), criteria
        self._number = choice.newest
        # The names of the newest saves: of the two that are kept, and of one that a thread may still be writing.
        self._names = [] if choice.record is None else [choice.record.name]
        # What Lightning has put into the save that is being made.
        self._entries: Optional[Dict[str, Any]] = None
        self._last_save, self._last_cost = time.monotonic(), 0.0
        #: How many seconds the slowest save has taken.
        self.slowest = 0.0
        self._has_said_stretched = False

    def is_due(self, trainer: Trainer, point: Optional[SavePoint]) -> bool:
        """Whether global rank 0 wants to save at this point."""
        if point is None or not trainer.is_global_zero:
            return False
        if self._save_every < 1:
            return True
        share = _BEFORE_VALIDATION if point is SavePoint.VALIDATION else 1.0
        cheapest = _COST * self._last_cost
        if cheapest > self._save_every and not self._has_said_stretched:
            self._has_said_stretched = True
            log.info("A save takes %.0f s: saving every %.0f s, so that it takes 5 %%", self._last_cost, cheapest)
        return time.monotonic() - self._last_save >= max(share * self._save_every, cheapest)

    def save(self, trainer: Trainer, point: SavePoint) -> None:
        """Save into the fit's series. Collective: every rank must call it.

        Args:
            trainer: The trainer, at a moment at which it can be saved.
            point: Which moment it is.

        Raises:
            CheckpointError: The save failed. Older ones are unchanged.
        """
        started = time.monotonic()
        self._number += 1
        record = self._record(trainer, point)
        state = self._state_of(trainer, point, record)
        path = self._series.path(record.name)
        # Those of Lightning 1.5 are one too high.
        numbers = {"epoch": state["record"]["epoch"], "global_step": state["record"]["step"]}
        checkpoint = {**self._dump(trainer), **numbers, STATE_KEY: state}
        note_checkpoints(trainer, checkpoint)
        state["scores"] = gather_objects(trainer, on_cpu(states_with_scores(trainer, checkpoint)))
        mark_point(checkpoint, point)
        strategy_of(trainer).save_checkpoint(checkpoint, path)
        strategy_of(trainer).barrier("Trainer.save_checkpoint")
        self._names = [*self._names[-2:], record.name]
        if removes_files(trainer, path):
            if not trainer.is_global_zero:
                self._series.remove_but(self._names)
            if point is SavePoint.END:
                self._series.thin_out_earlier()
        self._last_save = time.monotonic()
        self._last_cost = self._last_save - started
        self.slowest = max(self.slowest, self._last_cost)
        if trainer.is_global_zero:
            log.info("Saved %s (epoch %d, step %d, %.2f s)", path, record.epoch, record.step, self._last_cost)

    def _record(self, trainer: Trainer, point: SavePoint) -> CheckpointRecord:
        step = int(trainer.global_step)
        stems = (f"step-{step}" if index == 1 else f"step-{step}-{index}" for index in range(1, self._number + 2))
        return CheckpointRecord(
            name=next(f"{stem}.ckpt" for stem in stems if f"{stem}.ckpt" not in self._names),
            number=self._number,
            step=step,
            epoch=epochs_trained(self._namespace, trainer) if point is SavePoint.END else int(trainer.current_epoch),
            kind=point.value,
            world_size=trainer.world_size,
            strategy=shards_of(strategy_of(trainer)),
            save_id=os.urandom(8).hex(),
            time=time.time(),
            job=self._job,
            model=self._model,
        )

    def _state_of(self, trainer: Trainer, point: SavePoint, record: CheckpointRecord) -> Dict[str, Any]:
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress
        gradients = unused_gradients(trainer)
        own = {**rank_state(trainer, point, self._attributes), "gradients": digest_of(gradients)}
        return {
            "record": asdict(broadcast(trainer, record)),
            "directory": real_path(self._series.root),
            "batches": int(progress.current.processed),
            "repeats": repeats_loaders(trainer),
            "logged_step": int(logged_step(trainer)),
            "loaded_in": reload_epoch(trainer),
            "should_stop": bool(trainer.should_stop),
            "criteria": dict(self._criteria),
            "data": describe_data(trainer.world_size, loaders_of(trainer)),
            "finders": found_by_searches(self._namespace, trainer),
            "optimizers": describe_optimizers(trainer),
            "configured": self._configured,
            "gradients": gradients,
            "parameters": on_cpu(parameters_beside_model(trainer)),
            "pruning": pruning_state(trainer),
            "ranks": gather_objects(trainer, own),
            "large": self._attributes.take_large(),
            "communication": communication_states(trainer),
            "csv_files": csv_files(trainer),
        }

    def note_entries(self, checkpoint: Mapping[str, Any]) -> None:
        """Note what Lightning has put into a checkpoint of the series, before hooks of the project change it."""
        if self._entries is not None:
            found = {key: deepcopy(value) if key == "loops" else copy(value) for key, value in checkpoint.items()}
            self._entries.update(found)

    def _dump(self, trainer: Trainer) -> Dict[str, Any]:
        """What Lightning saves and hooks add; what hooks remove from it, or change of the loops, is put back."""
        self._entries = {}
        try:
            with saving_for_restart(self._namespace, trainer):
                checkpoint = dump_checkpoint(trainer)
            own = {key: value for key, value in self._entries.items() if key not in checkpoint or key == "loops"}
            return {**checkpoint, **own}
        finally:
            self._entries = None
