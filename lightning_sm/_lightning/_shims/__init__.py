"""Every difference between Lightning's versions that our code would notice.

Each shim names the versions that it serves, the change upstream, and so the day when it can go.
"""

from lightning_sm._lightning._shims._checkpoints import (
    innermost_wrapper,
    keep_newest,
    last_needs_best,
    save_by_time,
    save_last_as_file,
    saved_by_all_ranks,
    write_over_own,
)
from lightning_sm._lightning._shims._cli import (
    add_any_data_module,
    cli_base_path,
    configs_must_be_whole,
    parse_words,
    save_config_arguments,
)
from lightning_sm._lightning._shims._loops import (
    epochs_trained,
    resumes_within_epochs,
    save_checkpoint_at_end,
    saves_before_epoch_hooks,
    signal_connector_of,
    steps_taken,
    train_loaders_method,
)
from lightning_sm._lightning._shims._ranges import (
    SHIMS,
    Shim,
)
from lightning_sm._lightning._shims._strategies import (
    add_legacy_environment_methods,
    backend_variable,
    ddp_base_path,
    heed_written_num_nodes,
    keep_cluster_environment,
    register_strategy,
    replace_infinite_barrier,
    single_device_class,
    strategy_of,
)

__all__ = [
    "SHIMS",
    "Shim",
    "add_any_data_module",
    "add_legacy_environment_methods",
    "backend_variable",
    "cli_base_path",
    "configs_must_be_whole",
    "ddp_base_path",
    "epochs_trained",
    "heed_written_num_nodes",
    "innermost_wrapper",
    "keep_cluster_environment",
    "keep_newest",
    "last_needs_best",
    "parse_words",
    "register_strategy",
    "replace_infinite_barrier",
    "single_device_class",
    "resumes_within_epochs",
    "save_by_time",
    "save_checkpoint_at_end",
    "save_config_arguments",
    "save_last_as_file",
    "saved_by_all_ranks",
    "saves_before_epoch_hooks",
    "signal_connector_of",
    "steps_taken",
    "strategy_of",
    "train_loaders_method",
    "write_over_own",
]
