"""Adds environment and callbacks, which no config can hold, to the arguments of a ``Trainer``.

``job`` and ``trainer_settings`` offer scripts what the CLI offers.
"""

import functools
import os
from dataclasses import replace
from typing import Any, Dict, Iterator, Mapping, Optional

from lightning_sm._distributed.environment import SageMakerEnvironment
from lightning_sm._failure import failure_reported, read_job
from lightning_sm._lightning import SupportLevel, choose_fabric, choose_namespace, namespace_of, support_level
from lightning_sm._lightning.wrapped_method import set_by_variables
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings.given import Given, RunContext, as_list
from lightning_sm._settings.line import SCRIPT, Part
from lightning_sm._settings.options import options_of
from lightning_sm._settings.redirect import complete_loggers, redirect
from lightning_sm._settings.routed import Routing
from lightning_sm._settings.routing import build_routing, route_world
from lightning_sm.callbacks.job_callbacks import own_callbacks, upload_callbacks
from lightning_sm.errors import OptionError

__all__ = [
    "complete_arguments",
    "fabric_settings",
    "job",
    "stay_on_one_host",
    "trainer_settings",
]

# Set for the processes that Lightning starts from here, so that they count the hosts as this one did.
_ONE_HOST = "LIGHTNING_SM_ONE_HOST"
_CLUSTERS = ("MASTER_PORT", "NODE_RANK", "WORLD_SIZE", "SLURM_", "LSB_", "JSM_", "PMI_", "PMIX_", "OMPI_", "TPU_")


def complete_arguments(arguments: Dict[str, Any], context: RunContext, routing: Routing) -> Routing:
    """Add the job's cluster environment and loggers to a trainer's arguments; returns, and logs, all that is routed.

    Args:
        arguments: The trainer's arguments, which are changed.
        context: The run.
        routing: What the arguments have been set to already.
    """
    if context.job.in_container:
        _add_environment(arguments, context)
        routing = replace(routing, settings=(*routing.settings, *complete_loggers(arguments, context)))
    if routing and context.topology.is_rank_zero:
        _log_table(routing.table())
    return routing


def _add_environment(arguments: Dict[str, Any], context: RunContext) -> None:
    """Put a :class:`SageMakerEnvironment` among the plugins where the strategy brings none along."""
    strategy = arguments.get("strategy")
    is_ours = isinstance(strategy, str) and strategy.startswith("smddp")
    if context.topology.launcher != Launcher.LOCAL and not is_ours and not _brings_environment(arguments, context):
        arguments["plugins"] = [*as_list(arguments.get("plugins")), SageMakerEnvironment(context.topology)]


def _brings_environment(arguments: Mapping[str, Any], context: RunContext) -> bool:
    """Whether the strategy or a plugin is, or has, the program's own cluster environment."""
    kind = context.namespace.module("plugins.environments").ClusterEnvironment
    has_one = getattr(arguments.get("strategy"), "cluster_environment", None) is not None
    return has_one or any(isinstance(plugin, kind) for plugin in as_list(arguments.get("plugins")))


def stay_on_one_host(arguments: Dict[str, Any], context: RunContext) -> None:
    """Set ``num_nodes`` to 1 where a config names several hosts and no launcher or cluster started this process.

    This happens with the config of a job of several hosts on a laptop, where Lightning would wait forever at a random
    port that no other host can know.

    Args:
        arguments: The trainer's arguments, which are changed.
        context: The run.
    """
    num_nodes = arguments.get("num_nodes")
    if context.topology.launcher != Launcher.LOCAL or not isinstance(num_nodes, int) or num_nodes < 2:
        return
    in_cluster = any(name.startswith(_CLUSTERS) for name in os.environ)
    if _brings_environment(arguments, context) or (in_cluster and _ONE_HOST not in os.environ):
        return
    log.warning(
        "trainer.num_nodes is %s, but no launcher or cluster started this process: training on one host.", num_nodes
    )
    os.environ[_ONE_HOST] = "1"
    arguments["num_nodes"] = 1


def job() -> TrainingJob:
    """Return the training job, for a script that needs its channels and hyperparameters.

    Files and variables that are read: see :class:`~lightning_sm.TrainingJob`. Outside a container the job is empty, and
    defaults hold. From now on an error that ends the program is written to the job's failure file as its reason.

    Raises:
        JobConfigError: A file or variable of the job is broken.

    Example::

        >>> import lightning_sm
        >>> job = lightning_sm.job()
        >>> job.channel("training", default="./data")
        './data'
        >>> job.hyperparameters.get("lr", 0.01)
        0.01
    """
    return read_job()


def trainer_settings(
    *, sagemaker: Optional[Dict[str, Any]] = None, trainer_class: Optional[type] = None, **trainer_arguments: Any
) -> Dict[str, Any]:
    """Return the arguments of a ``Trainer``, completed with what SageMaker determines.

    ``Trainer(**trainer_settings(max_epochs=5))`` trains in as many processes as the launcher started, logs below the
    output directory, saves checkpoints in the job's checkpoint directory and exports the best model. Arguments that are
    given here win, with two exceptions: a local ``dirpath`` of a ``ModelCheckpoint`` is moved below the job's
    checkpoint directory, as one in a config file is, and a local ``save_dir`` of a ``CSVLogger`` or
    ``TensorBoardLogger`` by the output directory. The files of a ``TensorBoardLogger`` with a remote ``save_dir`` are
    uploaded while training goes on. Other loggers that write to a local directory are named in the log.
    Outside a container the arguments are returned unchanged, except for ``num_nodes`` and ``devices`` under an external
    launcher (``torchrun``).

    Files and variables that are read: see :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology`; and
    Lightning's own such as ``PL_TRAINER_DEVICES``, which count as given.

    Args:
        sagemaker: What the ``sagemaker`` group of the CLI takes, such as ``{"checkpoint_dir": "/opt/ml/checkpoints"}``.
        trainer_class: The ``Trainer`` that the arguments are for, which tells ``pytorch_lightning`` from
            ``lightning.pytorch`` in a program that imports both; by default the arguments tell, as far as they can.
        **trainer_arguments: Arguments of the ``Trainer``.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's variables contradict each other, or another number of hosts is asked for.
        DoctorError: ``doctor`` is set in ``sagemaker``, and something on this host is an error.
        OptionError: ``sagemaker`` is no mapping of known options, or has ``channels`` or ``hyperparameters``.
        OutputError: The checkpoint directory cannot be written.
        LoggerError: ``sagemaker.mlflow_arn`` or ``MLFLOW_TRACKING_URI`` names no MLflow, or a package is missing.
        CheckpointError, ExportError: An option of ``sagemaker`` has no meaning.

    Example::

        >>> from lightning_sm import trainer_settings
        >>> trainer_settings(max_epochs=5)  # outside a container
        {'max_epochs': 5}
    """
    this_job = read_job()
    with failure_reported(this_job):
        topology = Topology.resolve(job=this_job)
        classes = _classes(trainer_arguments, "callbacks", "strategy", "logger", "plugins")
        namespace = namespace_of(trainer_class, *classes) or choose_namespace()
        by_variable = set_by_variables(trainer_class, trainer_arguments)
        given = {**by_variable, **trainer_arguments}
        context = RunContext(this_job, topology, namespace, _given(given), options_of(sagemaker))
        if context.options.doctor:
            from lightning_sm._doctor import CHECKS, examine_host

            examine_host(CHECKS, this_job, topology)
        if context.options.channels or context.options.hyperparameters:
            raise OptionError(
                "sagemaker.channels and sagemaker.hyperparameters are for what a CLI makes, and this is a script.",
                hint='Take lightning_sm.job().channel("NAME") and lightning_sm.job().hyperparameters["NAME"].',
            )
        routing = build_routing(context)
        arguments = {**given, **_arguments(routing)}
        routing = complete_arguments(arguments, context, routing)
        present = as_list(arguments.get("callbacks"))
        own = upload_callbacks(routing.uploads, context)
        own += own_callbacks(arguments, [*present, *own], context, routing=routing.lines)
        if own:
            arguments["callbacks"] = [*present, *own]
    # Lightning reads the variables itself.
    return {name: value for name, value in arguments.items() if value is not by_variable.get(name, arguments)}


def _classes(arguments: Mapping[str, Any], *names: str) -> Iterator[type]:
    """The classes of the objects among some arguments."""
    return (type(entry) for name in names for entry in as_list(arguments.get(name)))


def _given(arguments: Mapping[str, Any]) -> Given:
    """What a script gives; an argument that is ``None`` is open."""
    values = {f"trainer.{name}": value for name, value in arguments.items() if value is not None}
    return Given({"trainer": arguments}, (Part(SCRIPT, values),))


def _arguments(routing: Routing) -> Dict[str, Any]:
    return {setting.key.partition(".")[2]: setting.value for setting in routing.settings}


@functools.lru_cache(maxsize=None)
def _log_table(table: str) -> None:
    """Log a table once, whatever number of trainers it is for."""
    log.info("%s", table)


def fabric_settings(
    *, sagemaker: Optional[Mapping[str, Any]] = None, fabric_class: Optional[type] = None, **fabric_arguments: Any
) -> Dict[str, Any]:
    """Return the arguments of a ``Fabric``, completed with the job's world and the directories of its loggers.

    ``Fabric(**fabric_settings(precision="bf16-mixed"))`` trains in as many processes as the launcher started, with the
    strategy ``smddp`` where these are several, and its loggers write below the output directory. Arguments that are
    given here win, but for a local ``root_dir`` of a logger. Outside a container the arguments are returned unchanged,
    except for ``num_nodes`` and ``devices`` under an external launcher (``torchrun``).

    Files and variables that are read: see :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology`; and:

    ``LT_ACCELERATOR``, ``LT_STRATEGY``, ``LT_DEVICES``, ``LT_NUM_NODES``, ``LT_PRECISION``, ``LT_CLI_USED``
      Arguments of ``Fabric``, and that they are used; set by ``fabric run``.

    Args:
        sagemaker: As in :func:`~lightning_sm.trainer_settings`; ``output_dir`` has an effect.
        fabric_class: The ``Fabric`` that the arguments are for, which tells ``lightning_fabric`` from
            ``lightning.fabric`` in a program that imports both; by default the arguments tell, as far as they can.
        **fabric_arguments: Arguments of the ``Fabric``.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's variables contradict each other, or another number of hosts or processes is asked
            for, or started, than the job has, by ``fabric run``, too.
        OptionError: ``sagemaker`` is no mapping of known options.

    Example::

        >>> from lightning_sm import fabric_settings
        >>> fabric_settings(precision="bf16-mixed")  # outside a container
        {'precision': 'bf16-mixed'}
    """
    this_job = read_job()
    with failure_reported(this_job):
        topology = Topology.resolve(job=this_job)
        namespace = choose_fabric(fabric_class, *_classes(fabric_arguments, "strategy", "loggers", "plugins"))
        topology.check_hosts()
        by_command = _arguments_of_command()
        given = _given({**by_command, **fabric_arguments})
        context = RunContext(this_job, topology, namespace, given, options_of(sagemaker))
        routed = [
            replace(each, key=each.key.replace("trainer.", "fabric."))
            for each in route_world(context)
            if each.key.partition(".")[2] not in by_command
            # The level core has no strategies for Fabric.
            and (each.key != "trainer.strategy" or support_level(namespace) > SupportLevel.CORE)
        ]
        arguments = {**by_command, **fabric_arguments, **_arguments(Routing(tuple(routed)))}
        if this_job.in_container:
            _add_environment(arguments, context)
            routed += redirect(fabric_arguments.get("loggers"), "fabric.loggers", context)
    if routed and topology.is_rank_zero:
        _log_table(Routing(tuple(routed)).table())
    return {name: value for name, value in arguments.items() if name in fabric_arguments or name not in by_command}


def _arguments_of_command() -> Dict[str, str]:
    """The arguments of ``Fabric`` that ``fabric run`` has set, which starts torchrun on this host.

    Source: ``_set_env_variables`` in ``lightning/fabric/cli.py``.
    """
    names = ("accelerator", "strategy", "devices", "num_nodes", "precision")
    variables = {name: os.environ.get(f"LT_{name.upper()}") for name in names if os.environ.get("LT_CLI_USED") == "1"}
    return {name: value for name, value in variables.items() if value is not None}
