"""``FitRestorer``: restores in a fit what its save holds beside the state that Lightning restores."""

import copy
from typing import Any, Callable, Dict, List, Mapping, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import optimizer_groups, restore_optimizer_groups
from lightning_sm._lightning.collectives import broadcast
from lightning_sm._lightning.csv_logs import restore_csv_files
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.restart import (
    SavePoint,
    begin_loaders,
    continue_epoch,
    enable_plateau_schedulers,
    end_restart,
    iterated_loaders,
    loaders_of,
    resumes_within_epochs,
    skip_training,
    start_epoch,
)
from lightning_sm._lightning.results import set_results
from lightning_sm._lightning.stand_in import StandIn, iterated_by, original
from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._lightning.trainer_hooks import call_skipped_train_hooks, start_averages
from lightning_sm._logging import log
from lightning_sm._resume.attributes import MADE, TRAINER, Attributes, with_large
from lightning_sm._resume.callback_files import adopt_checkpoints
from lightning_sm._resume.data import (
    IteratedLoader,
    describe_changes,
    describe_data,
    describe_losses,
    has_repeated,
    prepare_loader,
    release_loader,
    sampler_of,
    set_sampler_epoch,
)
from lightning_sm._resume.data_values import set_sampler_state
from lightning_sm._resume.gradients import set_gradients
from lightning_sm._resume.model_state import restore_pruning, restore_searches, restore_weights
from lightning_sm._resume.optimizers import make_optimizers, schedulers_of, set_parameters_beside_model
from lightning_sm._resume.random_state import set_process_state
from lightning_sm._resume.record import CheckpointRecord
from lightning_sm._resume.series import STATE_KEY
from lightning_sm._resume.state import (
    restore_communication,
    restore_logged,
    restore_samplers,
    stateful_loaders,
)
from lightning_sm._resume.storage import real_path
from lightning_sm._resume.values import is_same

__all__ = ["FitRestorer", "release_loaders"]


def release_loaders(trainer: Trainer) -> None:
    """Give the loaders of the training their own samplers back, when the fit is over."""
    for loader in loaders_of(trainer):
        release_loader(loader)


class FitRestorer:
    """Restores a fit at the point at which it was saved, or lets a fit that had ended end again without a step.

    Args:
        namespace: Lightning's namespace.
        attributes: The attributes of the model and of callbacks.
    """

    def __init__(self, namespace: Namespace, attributes: Attributes) -> None:
        self._namespace, self._attributes = namespace, attributes
        #: Whether the fit had ended: nothing is trained.
        self.replays = False
        #: How the optimizers differ from those of the save, whose states they get.
        self.difference: Optional[str] = None
        #: What ``configure_optimizers`` has returned when the fit began in an earlier run.
        self.configured: Any = None
        # What the save holds beside Lightning's state, and the part of this rank.
        self._saved: Dict[str, Any] = {}
        self._own: Dict[str, Any] = {}
        # The attributes of this rank, and the arguments of all ranks' trainers.
        self._changed: Dict[str, Any] = {}
        # Of these, what hooks had set before the first batch, which may follow from the number of batches or processes.
        self._made: Dict[str, Any] = {}
        self._arguments: Dict[str, Any] = {}
        # The model's and callbacks' state in the save, as hooks around its loading left it, until the training begins.
        self._checkpoint: Dict[str, Any] = {}
        # The weights of layers that configure_optimizers makes, and the error that is raised if it makes none.
        self._late: Dict[str, Any] = {}
        self._late_error: Optional[RuntimeError] = None
        # Of a save of the fit itself, whose hooks have run: the optimizers' options and the schedulers' states.
        self._is_own = False
        self._options: List[List[Mapping[str, Any]]] = []
        self._schedules: List[Any] = []
        self._resumes_within_epoch = self._starts_epoch = False
        # Whether the loaders wait for the restore of an epoch.
        self._waits = False
        self._undo_results: Callable[[], Any] = dict
        # No lambda: processes that are spawned get the trainer with its callbacks, which is pickled.
        self._undo_skip: Callable[[], Any] = dict

    def take(
        self,
        trainer: Trainer,
        pl_module: Any,
        checkpoint: Dict[str, Any],
        record: Optional[CheckpointRecord],
        criteria: Mapping[str, Any],
        directory: str,
    ) -> None:
        """Take this package's part out of a loaded checkpoint, before Lightning restores the rest.

        Args:
            trainer: The trainer.
            pl_module: The model.
            checkpoint: The contents of the checkpoint, which are changed.
            record: The record of the save; ``None`` for a checkpoint that was given.
            criteria: What will end the fit.
            directory: The job's checkpoint directory.
        """
        self._saved = checkpoint.pop(STATE_KEY, {})
        if not self._saved:
            return
        self._is_own = record is not None
        self._checkpoint = {} if is_sharded(trainer) else checkpoint
        ranks = self._saved["ranks"]
        self._own = ranks[trainer.global_rank] if trainer.global_rank < len(ranks) else {}
        same_world = self._saved["data"].get("world size") == trainer.world_size
        self._resumes_within_epoch = self._point in (SavePoint.BATCH, SavePoint.VALIDATION) and same_world
        self._starts_epoch = not self._resumes_within_epoch
        ends_alike = self._saved["criteria"] == criteria
        has_ended = self._point is SavePoint.END and ends_alike
        self.replays = has_ended and self._is_own
        changed = with_large(self._own.get("attributes", {}), ranks[0]["attributes"], self._saved["large"])
        names = changed.pop(MADE, {})
        made = {owner: {name: changed[owner].pop(name) for name in names[owner]} for owner in names}
        self._made = made if ends_alike else {}
        self._changed = {owner: each for owner, each in changed.items() if not owner.startswith(TRAINER)}
        self._arguments = {
            owner: each
            for owner, each in ranks[0]["attributes"].items()
            if owner == TRAINER or (ends_alike and owner.startswith(TRAINER))
        }
        if "loops" in checkpoint:  # Lightning 1.5 saves none
            loaders = checkpoint["loops"]["fit_loop"]["state_dict"]
            loaders.pop("combined_loader", None)
            if self._own and stateful_loaders(self._own) and self._starts_epoch and not self.replays:
                # Lightning saves those of global rank 0.
                loaders["combined_loader"] = stateful_loaders(self._own)
        if trainer.global_rank < len(self._saved["scores"]):
            checkpoint["callbacks"].update(self._saved["scores"][trainer.global_rank])
        if record is not None:  # the callbacks' files of a given one stay with the training that saved it
            # Lightning gives the directories of global rank 0 to the callbacks of all ranks.
            adopt_checkpoints(trainer, checkpoint, self._saved["directory"], broadcast(trainer, real_path(directory)))
        restore_searches(self._namespace, trainer, pl_module, self._saved["finders"])

    def restore_model(self, pl_module: Any, restore: Callable[[], None]) -> None:
        """Let Lightning restore the model. Layers that ``configure_optimizers`` makes get their weights after it.

        Args:
            pl_module: The model.
            restore: Calls ``on_load_checkpoint``, and loads the weights last.

        Raises:
            RuntimeError: The weights are not the model's.
        """
        try:
            restore()
        except RuntimeError as error:
            self._late = self._load_what_is_there(pl_module)
            if not self._late:
                raise
            self._late_error = error

    def _load_what_is_there(self, pl_module: Any) -> Dict[str, Any]:
        """Load the weights of the layers that are there, and return the others; none where anything else is wrong."""
        state = self._checkpoint.get("state_dict", {})
        if not (self._is_own and state):
            return {}
        try:
            found = pl_module.load_state_dict(state, strict=False)
        except RuntimeError:  # another shape
            return {}
        is_whole = found is not None and not found.missing_keys
        return {name: state[name] for name in found.unexpected_keys} if is_whole else {}

    def before_restore(self, trainer: Trainer) -> None:
        """Prepare the trainer for the restore of loops and optimizers; sharded strategies have restored the latter.

        Raises:
            RuntimeError: The save has weights that the model has not.
        """
        if not self._saved:
            return
        if self._late_error is not None:
            if trainer.lightning_module.load_state_dict(self._late, strict=False).unexpected_keys:
                raise self._late_error
            self._late, self._late_error = {}, None
        # Loaders are made by attributes, and with those of the loops Lightning compares the epoch that it restores.
        # GradientAccumulationScheduler wants to see the program's value in on_train_start.
        accumulate = trainer.accumulate_grad_batches
        self._restore_attributes(trainer, adds=False)
        trainer.accumulate_grad_batches = accumulate
        self.configured = self._saved["configured"]
        self.difference = make_optimizers(self._namespace, trainer, self._saved["optimizers"], self.configured)
        if self.difference and trainer.is_global_zero:
            log.warning(
                "The optimizers are not those of the checkpoint: %s. HINT: Let it return what the program sets later, "
                "by current_epoch or an attribute.",
                self.difference,
            )

    @property
    def _point(self) -> SavePoint:
        return SavePoint(self._saved["record"]["kind"])

    def process_loader(self, trainer: Any, process: Callable[[Any], Any], loader: Any) -> Any:
        """Let the sampler of a loader of the training be resumable, before Lightning uses it."""
        if trainer.training:
            prepare_loader(loader, lambda: trainer.current_epoch if trainer.training else None)
        return process(loader)

    def iterated(self, trainer: Trainer, loader: Any) -> Any:
        """Return what Lightning iterates in the place of a loader of the training."""
        if sum(each is original(loader) for each in loaders_of(trainer)) > 1:
            release_loader(original(loader))  # its one sampler would note several positions: it is read again
        if iterated_by(loader) is not None:
            return loader
        return StandIn(IteratedLoader(loader, trainer, lambda: self._waits))

    def after_restore(self, trainer: Trainer) -> None:
        """Prepare loops and loaders after Lightning has restored its state."""
        # Callbacks that read the checkpoint themselves may load other weights of it, such as WeightAveraging.
        hook = self._namespace.module().Callback.on_load_checkpoint
        reads = (getattr(type(each), "on_load_checkpoint", hook) is not hook for each in callbacks_of(trainer))
        kept = () if any(reads) else ("state_dict", "callbacks")
        self._checkpoint = {key: self._checkpoint.get(key, {}) for key in kept}
        if self._is_own:
            self._options = optimizer_groups(trainer)
            self._schedules = [copy.deepcopy(each.state_dict()) for each in schedulers_of(trainer)]
        if self.replays:
            self._undo_skip = skip_training(trainer)
        self._waits = self._resumes_within_epoch

    @property
    def _keeps_attributes(self) -> bool:
        """Whether the attributes are those of the point at which the fit continues, and not of later in its epoch."""
        return self._resumes_within_epoch or self._point in (SavePoint.EPOCH, SavePoint.END)

    def _restore_attributes(self, trainer: Trainer, *, adds: bool = True) -> None:
        saved = {**(self._changed if self._keeps_attributes else {}), **self._arguments}
        self._attributes.restore(trainer, saved, adds=adds)

    def restore(self, trainer: Trainer) -> None:
        """Restore after ``on_train_start`` of all callbacks and of the model, which may reset what is restored."""
        if not self._saved:
            return
        checkpoint, self._checkpoint = self._checkpoint, {}
        if checkpoint.get("state_dict"):
            restore_weights(trainer.lightning_module, checkpoint["state_dict"])
        for scheduler, state in zip(schedulers_of(trainer), self._schedules):
            if not is_same(scheduler.state_dict(), state):
                scheduler.load_state_dict(state)
        restore_optimizer_groups(trainer, self._options)
        set_parameters_beside_model(trainer, self._own.get("parameters") or self._saved["parameters"])
        restore_pruning(trainer, self._saved["pruning"])
        restore_csv_files(trainer, self._saved["csv_files"])
        if self.replays:
            self._restore_attributes(trainer)
            self._attributes.restore(trainer, self._made)
            if self._own:
                restore_logged(trainer, self._own)
                restore_samplers(trainer, self._own)
                set_process_state(self._own["random"])
            return
        if self._saved["should_stop"] and self._point is not SavePoint.END:
            trainer.should_stop = True
        same_world = self._saved["data"].get("world size") == trainer.world_size
        restore_communication(trainer, self._saved["communication"], is_same_world=same_world)
        changes = describe_changes(self._saved["data"], describe_data(trainer.world_size, loaders_of(trainer)))
        if trainer.is_global_zero:
            self._tell(trainer, changes)
        if changes or self._starts_epoch:
            self._starts_epoch, self._resumes_within_epoch = True, False
            start_epoch(trainer, self._saved["record"]["epoch"], self._saved["logged_step"], self._saved["loaded_in"])
        if self._waits:
            self._waits = False
            self._read_loaders(trainer)
            self._attributes.begin(trainer)  # the first run had begun to read, too
        self._restore_attributes(trainer)
        if not changes:
            self._attributes.restore(trainer, self._made)
        set_gradients(trainer, self._saved["gradients"], self._own.get("gradients"))
        if not self._own:
            return
        restore_logged(trainer, self._own)
        if self._keeps_attributes:
            self._attributes.restore_callbacks(trainer, checkpoint.get("callbacks", {}))
        if self._resumes_within_epoch:
            start_averages(trainer)
            continue_epoch(trainer, self._point, self._saved["loaded_in"])
            set_process_state(self._own["random"])
            if self._own["results"]:
                self._undo_results = set_results(trainer, self._own["results"])

    def _read_loaders(self, trainer: Trainer) -> None:
        """Begin the loaders, or bring them to the save's position."""
        loaders, batches = loaders_of(trainer), self._saved["batches"]
        if not self._resumes_within_epoch:
            begin_loaders(trainer, [], [False] * len(loaders), 0)
            return
        saved = self._own["loaders"]
        for loader, iterated, state in zip(loaders, iterated_loaders(trainer), saved):
            # Lightning makes the iterator before it calls set_epoch.
            set_sampler_epoch(loader, self._saved["record"]["epoch"])
            iterated.resume(state["read"])
            sampler = sampler_of(loader)
            if sampler is not None:
                sampler.resume(state, batches, repeats=self._saved["repeats"])
        repeated = [has_repeated(*each, batches) for each in zip(loaders, saved)]
        begin_loaders(trainer, stateful_loaders(self._own), repeated, batches)

    def _tell(self, trainer: Any, changes: Optional[str]) -> None:
        epoch, batches = self._saved["record"]["epoch"], self._saved["batches"]
        # Its generator goes on with each compiled graph, also with those before the first batch.
        if strategy_of(trainer).root_device.type == "xla":
            log.warning("Not restored: the random numbers of the XLA device, as for dropout.")
        if trainer.reload_dataloaders_every_n_epochs:
            log.warning("Not restored: what train_dataloader draws or counts, which is called anew.")
        for loader in self._own.get("loaders", ()):
            for path, why in loader.get("lost", {}).items():
                log.warning("Not restored: what a sampler holds in %s, which %s.", path.lstrip("."), why)
        if self._point in (SavePoint.BATCH, SavePoint.VALIDATION):
            where = f"epoch {epoch} after {batches} batches"
            if changes:
                log.warning("Restarting epoch %d: the checkpoint is from %s, but %s.", epoch, where, changes)
                return
            log.info("Resuming within an epoch: %s.", where)
            for loss in describe_losses(loaders_of(trainer)):
                log.warning("Not restored, in %s: %s.", where, loss)
        elif self._point is SavePoint.EPOCH and not resumes_within_epochs(self._namespace):
            version = self._namespace.version_text
            log.info("This Lightning (%s) continues at the start of an epoch: epoch %d begins again.", version, epoch)

    def start_epoch(self, trainer: Trainer) -> bool:
        """Restore the random states of the start of the restored epoch; return whether this is its start."""
        if not self._starts_epoch:
            return False
        self._starts_epoch = False
        if self._own and self._point in (SavePoint.EPOCH, SavePoint.END):
            restore_samplers(trainer, self._own)
            set_process_state(self._own["random"])
        return True

    def end_epoch(self, trainer: Trainer) -> None:
        """End the restored epoch as any other."""
        if not self._resumes_within_epoch:
            return
        self._resumes_within_epoch = False
        self._undo_results()
        enable_plateau_schedulers(trainer)
        for iterated in iterated_loaders(trainer):
            iterated.end()
        for loader, state in zip(loaders_of(trainer), self._own["loaders"]):
            sampler = sampler_of(loader)
            if sampler is not None and sampler.forget() is not None:  # no batch of the epoch was left
                set_sampler_state(loader, state["now"])

    def end_replay(self, trainer: Trainer) -> None:
        """Let the fit that had ended end again, with the hooks that Lightning calls around training."""
        self._undo_skip()
        call_skipped_train_hooks(trainer)
        end_restart(trainer)
        trainer.should_stop = self._saved["should_stop"]
