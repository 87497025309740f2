"""Strategies and their arguments, in config files, hyperparameters and words, in the process of the tests."""

import json

import pytest
import yaml

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm.cli import sagemaker_cli_class
from lightning_sm.errors import HyperparameterError, TopologyError
from tests.helpers.environ import torchrun
from tests.projects.container import config_of

pytest.importorskip("pytorch_lightning", minversion="2.4", reason="FSDP2's strategy, and the arguments of 2.4")
torch = pytest.importorskip("torch", minversion="2.4")
pytestmark = pytest.mark.usefixtures("one_namespace")

POLICIES = """
from torch.nn import Linear, Module
class Block(Module): pass
def by_size(module, recurse, nonwrapped_numel): return True
class Policy:
    def __init__(self, smallest: int): self.smallest = smallest
    def __call__(self, module, recurse, nonwrapped_numel): return nonwrapped_numel >= self.smallest
"""


@pytest.fixture
def parsed(container, monkeypatch):
    """The strategy's config, parsed and instantiated: the trainer is not made, which wants a GPU for FSDP."""
    (container.code / "nets.py").write_text(POLICIES)
    found = {}

    def parse(*words, **hyperparameters):
        container.hyperparameters(hyperparameters.pop("values", {}), **hyperparameters)
        cls = sagemaker_cli_class(Namespace("pytorch_lightning"))

        class CLI(cls):
            def _instantiate_trainer(self, config, callbacks):
                found.update(strategy=config["strategy"])
                return super()._instantiate_trainer({**config, "strategy": "auto"}, callbacks)

        made = container.cli(*words, cls=CLI)
        found["config"] = config_of(made)["trainer"]["strategy"]
        found["cli"] = made
        return found

    return parse


def name_of(strategy):
    return strategy if isinstance(strategy, str) else type(strategy).__name__


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"trainer.strategy": "DDPStrategy"}, "DDPStrategy"),
        ({"trainer.strategy": "lightning_sm.SMDDPStrategy"}, "SMDDPStrategy"),
        ({"trainer.strategy.class_path": "ModelParallelStrategy"}, "ModelParallelStrategy"),
        ({"strategy": "FSDPStrategy"}, "FSDPStrategy"),
        ({"trainer.strategy": "smddp"}, "smddp"),
        ({"trainer.strategy": "auto"}, "auto"),
    ],
    ids=str,
)
def test_a_class_needs_no_path(parsed, values, expected):
    assert name_of(parsed(values=values)["strategy"]) == expected
    assert name_of(parsed(*(f"--{key}={value}" for key, value in values.items() if "." in key))["strategy"]) in (
        expected,
        "auto",
    )


@pytest.mark.parametrize("place", ["separate words", "config and hyperparameter"])
def test_a_registered_name_takes_arguments(parsed, container, place):
    key, value = "trainer.strategy.sharding_strategy", "SHARD_GRAD_OP"
    if place == "separate words":
        found = parsed("--trainer.strategy", "fsdp_cpu_offload", f"--{key}", value)
    else:
        container.config("trainer: {strategy: fsdp_cpu_offload}\n", "more.yaml")
        found = parsed(values={"config": ["config.yaml", "more.yaml"], "trainer__strategy__sharding_strategy": value})
    assert found["strategy"].sharding_strategy.name == value
    assert found["strategy"].cpu_offload.offload_params is True


FSDP = {
    "cpu_offload": ("true", lambda made: made.cpu_offload.offload_params is True),
    "cpu_offload ": ("{offload_params: true}", lambda made: made.cpu_offload.offload_params is True),
    "sharding_strategy": ("SHARD_GRAD_OP", lambda made: made.sharding_strategy.name == "SHARD_GRAD_OP"),
    "mixed_precision": (
        "{param_dtype: torch.bfloat16, reduce_dtype: torch.float32}",
        lambda made: (
            (made.mixed_precision.param_dtype, made.mixed_precision.reduce_dtype) == (torch.bfloat16, torch.float32)
        ),
    ),
    "auto_wrap_policy": (
        "[nets.Block, torch.nn.Linear]",
        lambda made: {cls.__name__ for cls in made.kwargs["auto_wrap_policy"]._module_classes} == {"Block", "Linear"},
    ),
    "auto_wrap_policy ": ("nets.by_size", lambda made: made.kwargs["auto_wrap_policy"].__name__ == "by_size"),
    "activation_checkpointing_policy": ("[nets.Block]", lambda made: made._activation_checkpointing_kwargs != {}),
    "state_dict_type": ("sharded", lambda made: made._state_dict_type == "sharded"),
    "timeout": ("'0:10:00'", lambda made: made._timeout.total_seconds() == 600),
    "process_group_backend": ("gloo", lambda made: made._process_group_backend == "gloo"),
}


@pytest.mark.parametrize("name", FSDP)
def test_arguments_of_fsdp(parsed, name):
    text, is_right = FSDP[name]
    key = f"trainer.strategy.init_args.{name.strip()}"
    assert is_right(parsed(values={"trainer.strategy": "FSDPStrategy", key: yaml.safe_load(text)})["strategy"])


SMDDP = {
    "gradient_compression": ("powersgd", lambda made: made._options.gradient_compression == "powersgd"),
    "powersgd_rank": (2, lambda made: made._options.rank == 2),
    "communication_warmup_steps": (50, lambda made: made._options.warmup_steps == 50),
    "bucket_cap_mb": (5, lambda made: made._ddp_kwargs["bucket_cap_mb"] == 5),
    "static_graph": (True, lambda made: made._ddp_kwargs["static_graph"] is True),
    "gradient_as_bucket_view": (True, lambda made: made._ddp_kwargs["gradient_as_bucket_view"] is True),
}


@pytest.mark.parametrize("place", ["config", "hyperparameters", "words", "a registered name"])
def test_options_of_communication(parsed, container, place):
    given = {name: value for name, (value, _) in SMDDP.items()}
    if place == "config":
        content = {"class_path": "lightning_sm.SMDDPStrategy", "init_args": given}
        container.config(yaml.safe_dump({"trainer": {"strategy": content}}), "more.yaml")
        found = parsed(config=["config.yaml", "more.yaml"])
    elif place == "words":
        words = [f"--trainer.strategy.{name}={value}" for name, value in given.items()]
        found = parsed("--trainer.strategy=SMDDPStrategy", *words)
    else:
        values = {f"trainer.strategy.{name}": value for name, value in given.items()}
        found = parsed(values={"trainer.strategy": "smddp" if "name" in place else "SMDDPStrategy", **values})
    assert all(is_right(found["strategy"]) for _, is_right in SMDDP.values())
    # What the job saves as its config sets the strategy in the same way.
    assert found["config"]["init_args"]["bucket_cap_mb"] == 5


@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [
        ("FSDPStrategy", {name.strip(): yaml.safe_load(text) for name, (text, _) in list(FSDP.items())[1:]}),
        ("FSDPStrategy", {"auto_wrap_policy": ["nets.Block"], "device_mesh": [1, 1]}),
        ("FSDPStrategy", {"auto_wrap_policy": {"class_path": "nets.Policy", "init_args": {"smallest": 9}}}),
        ("ModelParallelStrategy", {"data_parallel_size": "auto", "save_distributed_checkpoint": False}),
        *(
            pytest.param("DeepSpeedStrategy", arguments, marks=pytest.mark.full)
            for arguments in (
                {"stage": 3, "offload_optimizer": True, "logging_level": 20},
                {"config": {"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}},
                {"config": "ds_config.json"},
            )
        ),
    ],
    ids=str,
)
def test_a_printed_config_reads_back(parsed, container, strategy, arguments, capsys):
    if strategy.startswith("Deep"):
        pytest.importorskip("deepspeed", reason="deepspeed is not installed")
        (container.code / "ds_config.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    content = {"class_path": f"pytorch_lightning.strategies.{strategy}", "init_args": arguments}
    container.config(yaml.safe_dump({"trainer": {"strategy": content}}), "more.yaml")
    first = parsed(config=["config.yaml", "more.yaml"])
    capsys.readouterr()  # DeepSpeed writes a line to stdout when it is imported
    with pytest.raises(SystemExit):
        parsed("--print_config", config=["config.yaml", "more.yaml"])
    printed = capsys.readouterr().out
    (container.code / "printed.yaml").write_text(printed)
    second = parsed(config="printed.yaml")
    assert (
        yaml.safe_load(first["cli"]._config_yaml())["trainer"]["strategy"]
        == (yaml.safe_load(second["cli"]._config_yaml())["trainer"]["strategy"])
    )
    if strategy.startswith("Deep"):
        assert first["strategy"].config == second["strategy"].config
        assert isinstance(second["strategy"].config, dict)


_FSDP, _SMDDP = "FSDPStrategy", "SMDDPStrategy"


@pytest.mark.parametrize(
    ("strategy", "values", "message"),
    [
        (_FSDP, {"mixed_precision.param_dtype": "bfloat16"}, "HINT: Write a dtype as torch.bfloat16"),
        (_FSDP, {"sharding_strategy": "full"}, "FULL_SHARD.* HINT: Run the same command with --help"),
        (_FSDP, {"auto_wrap_policy": ["nets.Nothing"]}, r"HINT: Give a list of module classes by their .*\[model"),
        (_FSDP, {"activation_checkpointing_policy": 3}, "HINT: Give a list of module classes"),
        (_FSDP, {"cpu_ofload": True}, "'cpu_ofload' is not accepted HINT: .* mean 'trainer.strategy.cpu_offload'?"),
        (_FSDP, {"limit_all_gathers": False}, "HINT: An argument .*belongs below trainer.strategy.dict_kwargs"),
        (_FSDP, {"auto_wrap_policy": "nets.Block"}, r"is a module and no policy\. HINT: .* a list: \[nets.Block\]"),
        (_FSDP, {"device_mesh": [2, 2]}, r"sets device_mesh=\[2, 2\] of the strategy, and the job has 1 proc.* HINT"),
        (_SMDDP, {"gradient_compression": "int8"}, "gradient_compression"),
        (_SMDDP, {"local_steps": 8, "gradient_compression": "bf16"}, "local_steps with .*compression=bf16 contradict"),
        (_SMDDP, {"bucket_cap_mb": "auto", "local_steps": 8}, "^SMDDPStrategy: bucket_cap_mb=auto with local_steps"),
        (_SMDDP, {"gradient_compresion": "bf16"}, "did you mean 'trainer.strategy.gradient_compression'?"),
    ],
    ids=str,
)
def test_bad_values_of_strategies(parsed, container, strategy, values, message):
    values = {f"trainer.strategy.{name}": value for name, value in values.items()}
    with pytest.raises((HyperparameterError, TopologyError), match=message):
        parsed(values={"trainer.strategy": strategy, **values})
    assert "HINT: " in container.failure
    assert "Subtypes: [<class 'str'>, <class 'pytorch" not in container.failure


@pytest.mark.parametrize("given", [{}, {"data_parallel_size": "auto"}, {"data_parallel_size": 8}], ids=str)
def test_the_size_of_fsdp2_is_the_jobs(parsed, container, in_environ, given):
    in_environ(torchrun(3, 4, 1, 2, 1, 2))
    content = {"class_path": "ModelParallelStrategy", "init_args": {"tensor_parallel_size": 2, **given}}
    container.config(yaml.safe_dump({"trainer": {"strategy": content}}), "more.yaml")
    found = parsed(config=["config.yaml", "more.yaml"])
    assert (found["strategy"]._data_parallel_size, found["strategy"]._tensor_parallel_size) == (2, 2)
    assert "trainer.strategy.init_args.data_parallel_size = 2 ← 4 processes by torchrun" in found["cli"].routing.table()
    portable = yaml.safe_load(found["cli"]._portable_config())["trainer"]["strategy"]["init_args"]
    assert portable.get("data_parallel_size") == given.get("data_parallel_size")


def test_the_trainer_gets_the_strategy_and_the_environment(container, in_environ):
    in_environ(torchrun(1, 2, 0, 1, 1, 2))
    container.hyperparameters({"trainer.strategy": "ModelParallelStrategy", "trainer.strategy.tensor_parallel_size": 1})
    trainer = container.cli().trainer
    assert type(strategy_of(trainer)).__name__ == "ModelParallelStrategy"
    assert type(strategy_of(trainer).cluster_environment).__name__ == "SageMakerEnvironment"
    assert (trainer.world_size, trainer.global_rank) == (2, 1)
