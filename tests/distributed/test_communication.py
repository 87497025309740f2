"""The options of ``SMDDPStrategy`` for communication, in one process. They train in ``tests/processes``."""

import gc
import sys
import time
import types
from dataclasses import replace

import pytest
import torch

from lightning_sm._distributed.autotune import Autotune, Measurement, candidates
from lightning_sm._distributed.communication import CommunicationOptions
from lightning_sm._distributed.local_steps import LocalSteps
from lightning_sm._distributed.powersgd import PowerSGD
from lightning_sm._distributed.registry import strategy_class
from lightning_sm._lightning import Namespace, SupportLevel, installed_namespaces, support_level
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._plan import Option, Workload
from lightning_sm.errors import HyperparameterError, SMDDPUnavailableError, StrategyUnavailableError
from tests.helpers.environ import torchrun

_NAMESPACE = installed_namespaces()[0]
_AUTO = {"bucket_cap_mb": "auto"}
_LIGHTNINGS = {"__module__": "lightning.pytorch.callbacks"}
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
needs_epoch = pytest.mark.skipif(
    support_level(_NAMESPACE) < SupportLevel.EPOCH, reason="the options need Lightning 2.1"
)


def _strategy(**arguments):
    return strategy_class(_NAMESPACE, "SMDDPStrategy")(**arguments)


@needs_epoch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient_compression": "int8"}, r"'int8' is unknown\. HINT: It is one of bf16, fp16"),
        (
            {"powersgd_rank": 2},
            "powersgd_rank=2 has no meaning with gradient_compression=None. HINT: Set grad",
        ),
        ({"powersgd_rank": 2, "gradient_compression": "bf16"}, "no meaning with gradient_compression=bf16"),
        ({"powersgd_rank": 0, "gradient_compression": "powersgd"}, "powersgd_rank=0 is less than 1. HINT: Take"),
        ({"communication_warmup_steps": 1, "gradient_compression": "powersgd"}, "is less than 2: DDP arranges"),
        ({"communication_warmup_steps": 9}, "communication_warmup_steps=9 has no meaning without local_steps"),
        ({"communication_warmup_steps": -1, "local_steps": 4}, "is less than 0"),
        ({"local_steps": 1}, "local_steps=1 is less than 2. HINT: Leave local_steps out"),
        ({"outer_momentum": 0.9}, "outer_momentum=0.9 has no meaning without local_steps. HINT: Set local_steps, too"),
        ({"outer_lr": 1, "gradient_compression": "bf16"}, "outer_lr=1 has no meaning without local_steps"),
        ({"outer_lr": 0, "local_steps": 4}, "outer_lr=0 is not above 0. HINT: Take 0.7"),
        ({"outer_momentum": 1, "local_steps": 4}, "outer_momentum=1 is not from 0 to below 1. HINT: Take 0.9"),
        ({"local_steps": 4, "gradient_compression": "bf16"}, "contradict each other: .* HINT: Choose one"),
        (
            {"find_unused_parameters": True, "gradient_compression": "powersgd"},
            "find_unused_parameters with gradient_compression=powersgd makes weights not-a-number",
        ),
        (
            {"ddp_comm_hook": print, "gradient_compression": "bf16"},
            "gradient_compression beside ddp_comm_hook would be two hooks of one model. HINT: Leave ddp_comm_hook or",
        ),
        ({"model_averaging_period": 4, "local_steps": 4}, "local_steps beside model_averaging_period"),
        # What is chosen needs steps like plain DDP's.
        ({**_AUTO, "gradient_compression": "powersgd"}, "bucket_cap_mb=auto with gradient_compression=powersgd cannot"),
        (
            {**_AUTO, "local_steps": 4},
            "bucket_cap_mb=auto with local_steps cannot be: its later steps are not measured",
        ),
        ({**_AUTO, "ddp_comm_hook": print}, "bucket_cap_mb=auto beside ddp_comm_hook would be two hooks"),
        (
            {**_AUTO, "mixed_precision": "any"},
            "bucket_cap_mb=auto with mixed_precision would wrap the model in it twic",
        ),
    ],
    ids=str,
)
def test_options_that_contradict_each_other(arguments, message):
    with pytest.raises(HyperparameterError, match=f"^SMDDPStrategy: .*{message}"):
        _strategy(**arguments)


@needs_epoch
def test_what_is_chosen_needs_automatic_optimization_a_known_device_and_a_torch_that_wraps_again(group, monkeypatch):
    strategy = types.SimpleNamespace(model=_Model(), root_device=torch.device("cpu"))
    module = types.SimpleNamespace(automatic_optimization=False)
    tuned = Autotune(strategy, "auto", None)
    with pytest.raises(HyperparameterError, match=r"auto cannot be used with manual optimization.* HINT: Set grad"):
        tuned.setup(types.SimpleNamespace(lightning_module=module))
    strategy.root_device = torch.device("xla", 0)
    with pytest.raises(HyperparameterError, match="nothing is measured on xla, so nothing can be chosen by auto"):
        Autotune(strategy, "auto", None)
    strategy.root_device = torch.device("cpu")
    monkeypatch.delattr(torch.nn.parallel.DistributedDataParallel, "_remove_autograd_hooks")
    with pytest.raises(StrategyUnavailableError, match=r"auto wraps the model again, .* torch 2\.1 .* HINT: Set"):
        Autotune(strategy, "auto", None)


@needs_epoch
@pytest.mark.parametrize(
    ("state", "is_same_world", "wrapped_with"),
    [
        ({"gradient_compression": "bf16", "bucket_cap_mb": 5.0}, True, [5.0]),
        ({"gradient_compression": None, "bucket_cap_mb": None}, True, [None]),
        ({"gradient_compression": "bf16", "bucket_cap_mb": 5.0}, False, []),
        ({"gradient_compression": "fp16", "bucket_cap_mb": 5.0}, True, []),
        ({"steps": 4, "weights": []}, True, []),
    ],
    ids=["bf16", "plain DDP", "another world", "another option", "of local steps"],
)
def test_a_restarted_job_goes_on_with_its_choice_where_that_can_be(group, state, is_same_world, wrapped_with):
    model, wrapped = _Model(), []
    strategy = types.SimpleNamespace(
        model=model,
        root_device=torch.device("cpu"),
        global_rank=0,
        wrap_again=lambda size: wrapped.append(size) or model,
    )
    tuned = Autotune(strategy, "auto", "auto")
    assert tuned.state() is None
    tuned.load(state, is_same_world)
    assert wrapped == wrapped_with
    assert tuned.state() == (state if wrapped_with else None)


def _measurement(ways, gbit, latency=1e-4):
    """A transformer of 25 million parameters on four hosts of so many Gbit/s, which sum what ``ways`` names."""
    per_byte = {way: (0.5 if way else 1.0) * 1.5 / (gbit * 1e9 / 8) for way in ways}
    return Measurement(4, Workload(25e6, 0.3), latency, per_byte)


@pytest.mark.parametrize(
    ("measurement", "chosen"),
    [
        (_measurement([None, "bf16"], gbit=1), Option("bf16", bucket_cap_mb=10)),
        (_measurement([None, "bf16"], gbit=0.2), Option("bf16")),
        (_measurement([None], gbit=1), Option(bucket_cap_mb=10)),
        (_measurement([None, "bf16"], gbit=100), Option()),
        (_measurement([None, "bf16"], gbit=8), Option(bucket_cap_mb=2)),
        (replace(_measurement([None, "bf16"], gbit=1), processes=1), Option()),
    ],
    ids=["1 Gbit/s", "200 Mbit/s", "no bf16", "100 Gbit/s", "8 Gbit/s", "one process"],
)
def test_what_is_chosen_for_a_network(measurement, chosen):
    assert measurement.choose(candidates("auto", "auto")) == chosen


@pytest.mark.parametrize(
    ("options", "described"),
    [
        (CommunicationOptions(), None),
        (CommunicationOptions("bf16"), "gradients are sent as bf16, which rounds them; what is learned differs from"),
        (
            CommunicationOptions("powersgd"),
            "PowerSGD of rank 4 approximates gradients after 1000 steps; what is",
        ),
        (
            CommunicationOptions(local_steps=16, communication_warmup_steps=0),
            "after 0 steps each process trains by itself, and weights are averaged every 16 steps; what is learned",
        ),
        (
            CommunicationOptions(local_steps=16, outer_momentum=0.8),
            "after 1000 steps each process trains by itself, and weights are averaged every 16 steps, where an outer "
            "SGD of learning rate 0.7 and momentum 0.8 takes their change; what is",
        ),
    ],
    ids=str,
)
def test_what_changes_the_training_says_so(options, described):
    assert str(options.describe()).startswith(str(described))


def test_an_older_lightning_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(Namespace, "version", min(_NAMESPACE.version, (1, 9)))
    _strategy(bucket_cap_mb=5)
    with pytest.raises(StrategyUnavailableError, match=r"^bucket_cap_mb=auto and the other options"):
        _strategy(bucket_cap_mb="auto")
    with pytest.raises(StrategyUnavailableError, match=r"Lightning 2.1 and newer, and .* 1.\d. HINT: Leave it out, or"):
        _strategy(gradient_compression="bf16")


@pytest.mark.parametrize(
    "option", [{"gradient_compression": "bf16"}, {"local_steps": 4}, {"static_graph": True}, _AUTO], ids=str
)
@needs_epoch
def test_what_aws_does_not_document_is_not_used_over_smddp(in_environ, monkeypatch, option):
    monkeypatch.setitem(sys.modules, _MODULE, types.ModuleType("smddp"))
    in_environ(torchrun(0, 2, 0, 2, 0))
    made = _NAMESPACE.module().Trainer(
        accelerator="cpu", logger=False, strategy=_strategy(process_group_backend="smddp", **option)
    )
    (name,) = option
    with pytest.raises(SMDDPUnavailableError, match=rf"AWS does not document {name}\S* for SMDDP \(.* HINT: .*NCCL"):
        strategy_of(made)._prepare_group()


class _Model(torch.nn.Module):
    """As ``DistributedDataParallel`` keeps a module and registers a hook."""

    def __init__(self):
        super().__init__()
        shapes = [(40, 30), (7,), (20, 50), (40, 30), (20, 50), (64, 3, 3)]
        self.module = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def register_comm_hook(self, state, hook):
        pass


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    # A thread of gloo that still held the group would destroy it, and wait for itself.
    gc.collect()
    time.sleep(0.1)
    torch.distributed.destroy_process_group()


_UNFREEZES = r"auto cannot go on when Own unfreezes layers, .* HINT: Leave them"


@needs_epoch
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"gradient_compression": "powersgd"}, _UNFREEZES),
        ({"local_steps": 4}, _UNFREEZES),
        (_AUTO, _UNFREEZES),
        ({"static_graph": True}, r"static_graph with accumulate_grad_batches=4 fails in torch.* HINT"),
    ],
    ids=str,
)
def test_what_cannot_go_on_with_the_trainers_settings(option, said):
    finetuning = type("Own", (type("BaseFinetuning", (), _LIGHTNINGS),), {})()
    trainer = types.SimpleNamespace(accumulate_grad_batches=4, callbacks=[finetuning])
    with pytest.raises(HyperparameterError, match=said):
        _strategy(**option).setup(trainer)


@pytest.mark.parametrize(
    ("optimizers", "scaler", "callbacks", "message"),
    [
        (2, None, [], "the model has 2 optimizers, whose steps"),
        (0, None, [], "the model has 0 optimizers"),
        (1, "a scaler", [], "with precision=16-mixed each process would scale its loss"),
        # They would end with other weights on each process.
        (
            1,
            None,
            [type("EMA", (type("WeightAveraging", (), _LIGHTNINGS),), {})()],
            "EMA would average the weights of each",
        ),
    ],
    ids=["two optimizers", "none", "a scaler", "averages"],
)
def test_what_local_steps_cannot_train(group, optimizers, scaler, callbacks, message):
    local = LocalSteps(_Model(), period=4, warmup_steps=0)
    strategy = types.SimpleNamespace(
        optimizers=[object()] * optimizers,
        precision_plugin=types.SimpleNamespace(scaler=scaler),
        lightning_module=types.SimpleNamespace(trainer=types.SimpleNamespace(callbacks=callbacks)),
    )
    with pytest.raises(HyperparameterError, match=f"local_steps=4 cannot be used: {message}.* HINT: Leave local_steps"):
        local.setup(strategy)


def test_powersgd_cannot_send_a_parameter_without_dimensions(group):
    model = _Model()
    model.module.append(torch.nn.Parameter(torch.ones(())))
    with pytest.raises(HyperparameterError, match=r"cannot send 6, a parameter without dimensions\. HINT: Give it"):
        PowerSGD(model, rank=3, warmup_steps=2)


@pytest.mark.parametrize(("rank", "is_same_world"), [(3, True), (3, False), (2, True)])
def test_powersgd_does_not_warm_up_again_where_its_state_cannot_be_used(group, rank, is_same_world):
    kept = {"0": {"error": torch.ones(1200), "q": torch.ones(90)}}
    continued = PowerSGD(_Model(), rank=rank, warmup_steps=2)
    continued.load({"steps": 5, "rank": 3, "parameters": kept}, is_same_world=is_same_world)
    assert continued.state()["steps"] == 5
    assert set(continued.state()["parameters"]) == (set(kept) if rank == 3 and is_same_world else set())
