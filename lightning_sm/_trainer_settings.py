"""``job`` and ``trainer_settings``: give a script what the CLI gives its users."""

from dataclasses import replace
from typing import Any, Dict, Iterator, Optional

from lightning_sm._failure import failure_reported, read_job
from lightning_sm._job import TrainingJob
from lightning_sm._lightning import Namespace, choose_namespace, namespace_of
from lightning_sm._log import log
from lightning_sm._options import SageMakerOptions, options_of
from lightning_sm._routing import RoutedSetting, build_routing, may_replace, output_dir
from lightning_sm._routing._classes import find_class
from lightning_sm._settings import Settings
from lightning_sm._topology import Topology
from lightning_sm._trainer import add_environment, as_list, own_callbacks

__all__ = ["job", "trainer_settings"]


def job() -> TrainingJob:
    """Return the training job, for a script that needs its channels and hyperparameters.

    Outside a container the job is empty, and defaults hold::

        job = lightning_sm.job()
        data = MyData(job.channel("training", default="./data"))
        model = MyModel(lr=job.hyperparameters.get("lr", 0.01))

    From now on an error that ends the program is the job's failure reason.

    Raises:
        JobConfigError: A file or variable of the job is broken.
    """
    return read_job()


def trainer_settings(
    *, sagemaker: Optional[Dict[str, Any]] = None, trainer_class: Optional[type] = None, **trainer_arguments: Any
) -> Dict[str, Any]:
    """Return the arguments of a ``Trainer``, completed with what SageMaker decides.

    ``Trainer(**trainer_settings(max_epochs=5))`` trains in the launcher's world, logs below the output directory, keeps
    checkpoints in the job's checkpoint directory and exports the best model. What is given here wins, but a local
    ``dirpath`` of a ``ModelCheckpoint`` gives way to the job's checkpoint directory, as one in a config file does, and
    the local ``save_dir`` of a ``CSVLogger`` or ``TensorBoardLogger`` to the output directory. Other loggers that write
    to a local directory are named in the log.
    Outside a container the arguments come back as they were, but for the world of an external launcher (``torchrun``).

    It reads what :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology` name.

    Args:
        sagemaker: What the ``sagemaker`` group of the CLI takes, such as ``{"checkpoint_dir": "/opt/ml/checkpoints"}``.
        trainer_class: The ``Trainer`` that the arguments are for, which tells ``pytorch_lightning`` from
            ``lightning.pytorch`` in a program that imports both; by default the arguments tell, as far as they can.
        **trainer_arguments: Arguments of the ``Trainer``.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's numbers do not make a world, or another number of hosts is asked for.
        OptionError: ``sagemaker`` is no mapping of known options.
        OutputError: The checkpoint directory cannot be written.
    """
    this_job = read_job()
    with failure_reported(this_job):
        topology = Topology.resolve(job=this_job)
        given = [trainer_arguments.get(name) for name in ("callbacks", "strategy", "logger", "plugins")]
        objects = (type(entry) for value in given for entry in as_list(value))
        namespace = namespace_of(trainer_class, *objects) or choose_namespace()
        options = options_of(sagemaker)
        # A list of ready-made loggers or callbacks counts as one value here, which nothing looks into.
        settings = Settings.collect(given={"trainer": trainer_arguments})
        routing = build_routing(
            this_job,
            topology,
            settings,
            options=options,
            consumer=None,
            find_class=lambda name: find_class(namespace, name),
            namespace=namespace.name,
        )
        routed = routing.as_config().get("trainer", {})
        arguments = {**trainer_arguments, **routed}
        logger = routed.get("logger")
        if logger is not None:
            logger_class = find_class(namespace, logger["class_path"])
            assert logger_class is not None, "Lightning has the loggers that the routing names"
            arguments["logger"] = logger_class(**logger["init_args"])
        if this_job.in_container:
            add_environment(arguments, topology, namespace)
            redirected = tuple(_redirect_loggers(trainer_arguments.get("logger"), this_job, options, namespace))
            routing = replace(routing, settings=(*routing.settings, *redirected))
        present = as_list(arguments.get("callbacks"))
        own = own_callbacks(
            arguments,
            present,
            job=this_job,
            topology=topology,
            namespace=namespace,
            options=options,
            settings=settings,
        )
        if own:
            arguments["callbacks"] = [*present, *own]
    if routing and topology.is_rank_zero:
        log.info("%s", routing.table())
    return arguments


def _redirect_loggers(
    given: Any, job: TrainingJob, options: SageMakerOptions, namespace: Namespace
) -> Iterator[RoutedSetting]:
    """Let ready-made loggers write to the output directory, and warn of those that cannot be told to.

    The others are lost: SageMaker keeps its own directories only.
    """
    loggers = namespace.module("loggers")
    directory, source = output_dir(job, options)
    for index, logger in enumerate(as_list(None if isinstance(given, bool) else given)):
        old = getattr(logger, "save_dir", None)
        if not isinstance(old, str) or not may_replace(old, job):
            continue
        if isinstance(logger, (loggers.CSVLogger, loggers.TensorBoardLogger)) and logger._experiment is None:
            # Lightning's versions keep it under one of these names, or both.
            for name in {"_save_dir", "_root_dir"} & vars(logger).keys():
                setattr(logger, name, directory)
        if logger.save_dir == directory:
            place = f"trainer.logger[{index}]" if isinstance(given, (list, tuple)) else "trainer.logger"
            yield RoutedSetting(f"{place}.save_dir", directory, source, f"the script said {old}")
        elif not _sends(logger):
            log.warning(
                "%s writes to %s, which SageMaker does not keep. HINT: Give it a directory below %s.",
                type(logger).__name__,
                old,
                directory,
            )


def _sends(logger: Any) -> bool:
    """Whether a logger's output leaves the host by itself, so that its directory is a buffer only."""
    services = ("WandbLogger", "CometLogger", "NeptuneLogger", "LitLogger")
    is_service = any(cls.__name__ in services for cls in type(logger).__mro__)
    return is_service and not getattr(logger, "_offline", False)
