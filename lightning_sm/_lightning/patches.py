"""Every place where this package replaces a part of Lightning or DeepSpeed, and what would end that.

Why it is replaced stands in the docstring of the function. ``python -m tools.docs`` writes the table of
``docs/versions.md`` from this one.
"""

from typing import NamedTuple

__all__ = ["PATCHES", "Patch"]


class Patch(NamedTuple):
    """A part that is replaced.

    Args:
        function: What replaces it, as ``module.function`` of this folder.
        replaced: The part.
        versions: Of Lightning, if nothing else is said.
        ends: What would end it.
        link: The upstream code, issue or change.
    """

    function: str
    replaced: str
    versions: str
    ends: str
    link: str


_LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning"
_PYTORCH = f"{_LIGHTNING}/blob/2.6.1/src/lightning/pytorch"
_FABRIC = f"{_LIGHTNING}/blob/2.6.1/src/lightning/fabric"
_RANK_ZERO = "https://github.com/Lightning-AI/utilities/blob/v0.15.2/src/lightning_utilities/core/rank_zero.py"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed"
_CHECKPOINTS = f"{_PYTORCH}/trainer/connectors/checkpoint_connector.py"
_NEW = "2.1 and newer"

PATCHES = tuple(
    Patch(*row)
    for row in (
        (
            "namespaces.set_rank_zero_rank",
            "`rank_zero_only.rank`",
            "all",
            "a rank before the first log line",
            _RANK_ZERO,
        ),
        (
            "strategies.check_single_device_environment",
            "`SingleDeviceStrategy.setup_environment`",
            "all",
            "`validate_settings` for this strategy",
            f"{_PYTORCH}/strategies/single_device.py",
        ),
        (
            "strategies.replace_infinite_barrier",
            "`_InfiniteBarrier.__enter__`",
            "2.3 and newer, under `smddp`",
            "a barrier of the default process group",
            f"{_LIGHTNING}/pull/19448",
        ),
        (
            "wrapped_method.wrap_method",
            "`__init__` and `fit` of `Trainer`; `__init__`, `launch`, `setup` and `setup_module` of `Fabric`",
            "all, by `auto()` and in programs that do not import `lightning_sm`",
            "hooks before arguments are read and the group joined",
            f"{_FABRIC}/utilities/registry.py",
        ),
        (
            "launchers.end_with_spawned",
            "`launch` of `_MultiProcessingLauncher`",
            "1.6 and newer",
            "a launcher that ends with its processes",
            f"{_PYTORCH}/strategies/launchers/multiprocessing.py",
        ),
        (
            "checkpoints.around_sharded_saves",
            "`save_checkpoint` of a strategy object",
            _NEW,
            "a `CheckpointIO` for sharded checkpoints",
            f"{_PYTORCH}/strategies/fsdp.py",
        ),
        (
            "checkpoints.around_sharded_loads",
            "`load_checkpoint` of a strategy object",
            _NEW,
            "a `CheckpointIO` for sharded checkpoints",
            f"{_PYTORCH}/strategies/deepspeed.py",
        ),
        (
            "checkpoints.around_removals",
            "`remove_checkpoint` of a strategy object",
            _NEW,
            "a removal on each host",
            f"{_PYTORCH}/strategies/strategy.py",
        ),
        (
            "checkpoints.dcp_storage",
            "`_distributed_checkpoint_save`",
            "2.2 and newer",
            "an argument for its storage",
            f"{_FABRIC}/strategies/fsdp.py",
        ),
        (
            "checkpoints.complete_for_load",
            "a method of the engine without an optimizer",
            "DeepSpeed",
            "the issue",
            f"{_DEEPSPEED}/issues/7272",
        ),
        (
            "checkpoints.deferred_write_errors",
            "`save_checkpoint` of the engine, and what writes its files",
            "DeepSpeed",
            "errors that ranks exchange",
            f"{_DEEPSPEED}/blob/v0.17.6/deepspeed/runtime/engine.py",
        ),
        (
            "trainer_hooks.around_restore",
            "`resume_start`, `restore_model`, `restore_training_state` and `resume_end` of the checkpoint connector",
            "all",
            "a hook that chooses the checkpoint",
            _CHECKPOINTS,
        ),
        (
            "trainer_hooks.around_load",
            "`resume_start` of the checkpoint connector",
            "all",
            "a hook around loading a checkpoint in `test`, `validate` and `predict`",
            _CHECKPOINTS,
        ),
        (
            "trainer_hooks.after_run",
            "`run` of the fit loop",
            "all",
            "a hook after a loop that was skipped",
            f"{_PYTORCH}/loops/fit_loop.py",
        ),
        (
            "restart.continue_epoch",
            "`reset` of the training epoch loop",
            "2.5 and newer",
            "a loader whose position others may restore",
            f"{_PYTORCH}/loops/training_epoch_loop.py",
        ),
        (
            "trainer_hooks.before_train_end",
            "`on_run_end` of the fit loop",
            _NEW,
            "`on_train_end` of strategies before that of callbacks",
            f"{_PYTORCH}/loops/fit_loop.py",
        ),
        (
            "trainer_hooks.set_restored_handler",
            "`_original_handlers` of the signal connector",
            "all",
            "signal handlers that stay until `fit` returns",
            f"{_PYTORCH}/trainer/connectors/signal_connector.py",
        ),
        (
            "trainer_hooks.skip_hooks",
            "hooks without a body of our callbacks, which become `None`",
            "1.6 and newer",
            "hooks that Lightning skips itself",
            f"{_PYTORCH}/trainer/call.py",
        ),
        (
            "trainer_hooks.after_batches",
            "`update_train_step_metrics` of the logger connector",
            "all",
            "a hook after those of a batch",
            f"{_PYTORCH}/loops/training_epoch_loop.py",
        ),
        (
            "results.set_results",
            "`log` of the loop's results",
            "2.5 and newer",
            "sums of logged values in the loop's state",
            f"{_PYTORCH}/trainer/connectors/logger_connector/result.py",
        ),
        (
            "restart.start_epoch",
            "counters of the loops",
            "before 2.5",
            "the end of the levels core and epoch",
            f"{_LIGHTNING}/blob/2.5.0/src/lightning/pytorch/loops/training_epoch_loop.py",
        ),
        (
            "observing.around_fetches",
            "`_on_before_fetch` and `_on_after_fetch` of the loops",
            _NEW,
            "hooks around the wait for a batch",
            f"{_PYTORCH}/loops/training_epoch_loop.py",
        ),
        (
            "observing.hand_metrics_to",
            "`log_metrics` of the logger connector",
            f"{_NEW}, in a trainer without loggers",
            "metrics handed over without a logger",
            f"{_PYTORCH}/trainer/connectors/logger_connector/logger_connector.py",
        ),
    )
)
