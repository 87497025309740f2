"""The callbacks that a job adds to a ``Trainer``, and the job's checkpoint directory for those that are there."""

import functools
import os
import sys
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lightning_sm._atomic_file import check_writable
from lightning_sm._duration import duration_of_option
from lightning_sm._lightning import SupportLevel, describe_level, support_level
from lightning_sm._lightning.observing import drop_tips, plain_model_summary
from lightning_sm._lightning.trainer_hooks import skip_unused_hooks
from lightning_sm._logging import log
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm._resume.storage import Storage, check_url, is_remote, is_s3
from lightning_sm._sagemaker.topology import Launcher
from lightning_sm._settings.checkpoint_places import CheckpointPlaces
from lightning_sm._settings.given import Given, RunContext
from lightning_sm.callbacks import callback_class

__all__ = ["monitor_callbacks", "own_callbacks", "upload_callbacks"]

# What a job adds whatever its Lightning.
_CORE = frozenset({"AutoResume", "FinetuningState", "GracefulStop", "ModelExport", "WorldCheck"})


def own_callbacks(
    arguments: Dict[str, Any],
    present: Sequence[Any],
    context: RunContext,
    *,
    config: Optional[str] = None,
    portable_config: Optional[str] = None,
    routing: Sequence[str] = (),
) -> List[Any]:
    """Set the job's checkpoint directory on the callbacks that are present, and return the callbacks to add.

    Outside a container ``WorldCheck`` is added under an external launcher, ``ModelExport`` where
    ``sagemaker.model_dir`` is set, and ``GracefulStop`` where ``sagemaker.max_runtime`` is set.

    Lightning's own ``ModelCheckpoint`` is configured, never subclassed: its saved state is found again by the name of
    its class.

    Args:
        arguments: The trainer's arguments.
        present: All callbacks that the trainer will get.
        context: The run.
        config: The resolved configuration as YAML, to be exported beside the model.
        portable_config: The same without what SageMaker decided.
        routing: What SageMaker decided, one setting a line.

    Raises:
        OutputError: The checkpoint directory or the output directory cannot be written.
        ExportError: ``sagemaker.export`` or what refines it has no meaning, or needs a package that is missing.
        CheckpointError: ``sagemaker.resume`` is none of its words, or the checkpoint directory is a URL that cannot be
            used.
        OptionError: ``sagemaker.save_every``, ``max_runtime`` or ``log_every`` is no duration.
    """
    job, options = context.job, context.options
    own: List[Any] = []
    level = describe_level(context.namespace)
    if job.in_container and level is not None and context.topology.is_rank_zero:
        log.info("%s", level)
    world_check = _absent("WorldCheck", present, context)
    if world_check is not None and context.topology.launcher != Launcher.LOCAL:
        folders = {}
        if options.doctor:
            from lightning_sm._doctor import replicated_channels

            folders = replicated_channels(job)
        own.append(world_check(context.topology, folders))
    if job.in_container:
        if "://" not in context.output_dir[0]:
            check_writable(context.output_dir[0], "output directory")
        own += _auto_resume(arguments, present, context, config)
    export = _absent("ModelExport", present, context)
    if export is not None and options.export and (job.in_container or options.model_dir is not None):
        own.append(
            export(
                model_dir=options.model_dir,
                config=config,
                portable_config=portable_config,
                export=options.export,
                export_weights=options.export_weights,
                export_submodule=options.export_submodule,
                export_example_input=options.export_example_input,
                export_serving=options.export_serving,
                weights_only=options.resume_weights_only,
            )
        )
    # Before the callback whose teardown may end the program.
    own += monitor_callbacks(arguments, present, context, routing)
    graceful_stop = _absent("GracefulStop", present, context)
    if graceful_stop is not None and (job.in_container or options.max_runtime is not None):
        own.append(graceful_stop(options.max_runtime))
    for callback in own:
        if type(callback).__module__ == "lightning_sm":  # Lightning's own stay as they are
            skip_unused_hooks(context.namespace, callback)
    return own


def monitor_callbacks(
    arguments: Dict[str, Any], present: Sequence[Any], context: RunContext, routing: Sequence[str] = ()
) -> List[Any]:
    """Return the callback that writes progress, metrics and report, and a model summary without boxes.

    In a terminal Lightning's own progress bar stays. Lightning's recommendations of its services are kept out of the
    log in any case.

    Args:
        arguments: The trainer's arguments.
        present: All callbacks that the trainer will get.
        context: The run.
        routing: What SageMaker decided, one setting a line.

    Raises:
        OptionError: ``sagemaker.log_every`` is no duration.
    """
    if not context.job.in_container or not _has_level("TrainingMonitor", context):
        return []
    options, is_terminal = context.options, _is_in_terminal()
    drop_tips()
    own: List[Any] = []
    monitor = _absent("TrainingMonitor", present, context)
    if monitor is not None:
        own.append(
            monitor(
                progress=None if is_terminal else options.log_every,
                metrics=options.log_metrics,
                report=context.output_dir[0] if options.report else None,
                objective=context.job.hyperparameters.objective,
                settings=routing,
                topology=context.topology,
            )
        )
    has_summary = arguments.get("enable_model_summary") is not False and not arguments.get("barebones")
    return [*own, *(plain_model_summary(context.namespace, present) if has_summary and not is_terminal else ())]


def _is_in_terminal() -> bool:
    # Open MPI gives the standard output of its processes a pseudo-terminal, and reads it as the job's log.
    return "OMPI_COMM_WORLD_RANK" not in os.environ and (_is_terminal(sys.stdout) or _is_terminal(sys.stderr))


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # a stream of the user's, or one that is closed
        return False


def upload_callbacks(targets: Mapping[str, str], context: RunContext) -> List[Any]:
    """Return the callback that uploads TensorBoard files, where a logger's directory is uploaded.

    It is for all functions of the trainer; the callbacks of :func:`own_callbacks` are for ``fit``.

    Args:
        targets: The URL that each directory is uploaded to.
        context: The run.

    Raises:
        OptionError: ``sagemaker.upload_every`` is no duration.
    """
    if not targets or not _has_level("TensorBoardUpload", context):
        return []
    upload: Any = callback_class(context.namespace, "TensorBoardUpload")
    return [upload(targets, context.options.upload_every)]


def _has_level(name: str, context: RunContext) -> bool:
    """Whether the level of this Lightning has a callback."""
    return name in _CORE or support_level(context.namespace) is not SupportLevel.CORE


def _absent(name: str, present: Sequence[Any], context: RunContext) -> Any:
    """Return a callback's class; ``None`` where one of it is there already, or this Lightning's level has none."""
    if not _has_level(name, context):
        return None
    wanted = callback_class(context.namespace, name)
    return None if any(isinstance(callback, wanted) for callback in present) else wanted


def _checkpoint_dir(present: Sequence[Any], context: RunContext) -> str:
    """The job's checkpoint directory; a URL of a ``ModelCheckpoint`` where SageMaker keeps no directory in S3."""
    directory, _ = context.checkpoint_dir
    sources = context.job.sources
    is_kept = sources.get("checkpoint_dir") != sources.get("output_data_dir")
    if not context.job.in_container or context.options.checkpoint_dir or is_kept:
        return directory
    checkpoint_class = context.namespace.module("callbacks").ModelCheckpoint
    found = (callback.dirpath for callback in present if isinstance(callback, checkpoint_class))
    url = next((str(dirpath) for dirpath in found if is_s3(dirpath)), None)
    if url is None:
        return directory
    if context.topology.is_rank_zero:
        log.info("Checkpoints are saved in and resumed from %s, the dirpath of a ModelCheckpoint", url)
    return url


@functools.lru_cache(maxsize=None)
def _say_that_nothing_is_saved() -> None:
    log.warning(
        "No fit of a Trainer with enable_checkpointing=False (or barebones=True) is saved: an interrupted job trains "
        "again from its first step. HINT: Pass enable_checkpointing=True where the trainer is made, also to a library "
        "that makes it (trainer_kwargs)."
    )


def _auto_resume(
    arguments: Dict[str, Any], present: Sequence[Any], context: RunContext, config: Optional[str]
) -> List[Any]:
    """The callback that saves and resumes, and sends the checkpoints of the callbacks that are there to the job."""
    options, directory = context.options, _checkpoint_dir(present, context)
    seconds = duration_of_option("save_every", options.save_every)
    saves = arguments.get("enable_checkpointing") is not False and not arguments.get("barebones")
    if is_remote(directory) and saves:
        check_url(directory)
        # In the main thread, as Lightning does: a thread that saves would make another one.
        Storage(directory).prepare()
    elif saves and not arguments.get("fast_dev_run"):
        check_writable(directory, "checkpoint directory")
    # Without the parser's values, which may hold what cannot be pickled.
    given, chosen = Given(parts=context.given.parts), replace(options, checkpoint_dir=directory)
    places = CheckpointPlaces(replace(context, given=given, options=chosen))
    places.route(present)
    if not saves:
        if context.topology.is_rank_zero and not arguments.get("fast_dev_run"):
            _say_that_nothing_is_saved()
        return []
    own: List[Any] = []
    auto_resume = _absent("AutoResume", present, context)
    if auto_resume is not None:
        import yaml

        values = None if config is None else yaml.safe_load(config)
        if values is not None:
            # As it was set: Lightning draws one, another at each start, for a seed that is true.
            is_set = context.given.source_of("seed_everything") is not None
            values["seed_everything"] = context.given.get("seed_everything") if is_set else None
        identity = ProgramIdentity.of(context.job, values)
        more = {"save_every": seconds, "async_save": options.async_save, "places": places}
        own.append(auto_resume(directory, options.resume, identity, options.resume_weights_only, **more))
    finetuning = _absent("FinetuningState", present, context)
    return own if finetuning is None or options.resume == "never" else [*own, finetuning()]
