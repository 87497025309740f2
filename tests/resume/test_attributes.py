"""Attributes that training changes are saved with their types, set in place, and told of where they are too large."""

import io
import itertools
import logging
import random
import sys
import time
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader

from lightning_sm._resume.attributes import MADE, Attributes, with_large
from tests.helpers.interrupted import NAMESPACE, pl
from tests.helpers.series import saves_of, train_fit
from tests.helpers.setups import Setup, Size
from tests.helpers.setups.core import net, shuffled
from tests.resume.test_setups import differences, few

EMPTY, TRACED = torch.empty(0), torch.ones(2, requires_grad=True)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.mean = torchmetrics.MeanMetric()


def trainer_of(model=None, *callbacks, data=(), **more):
    """A trainer of one process, with loaders of these data sets."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    loaders = [each if isinstance(each, DataLoader) else SimpleNamespace(dataset=each) for each in data]
    fit_loop = SimpleNamespace(epoch_loop=None, _combined_loader=SimpleNamespace(flattened=loaders))
    parts = {"datamodule": None, "optimizers": [], "fit_loop": fit_loop, "is_global_zero": True, **more}
    return SimpleNamespace(
        lightning_module=model or Model(), callbacks=list(callbacks), strategy=strategy,
        training_type_plugin=strategy, **parts,
    )  # fmt: skip


def saved_after(trainer, change):
    """What a save holds after a change, as a new process loads it."""
    kept = Attributes(NAMESPACE)
    kept.begin(trainer)
    change()
    file = io.BytesIO()
    torch.save(kept.state(trainer), file)
    return torch.load(io.BytesIO(file.getvalue()))


def saved_of(change, model=None):
    """The same after a change of a model."""
    model = model or Model()
    return saved_after(trainer_of(model), lambda: change(model))


def restored(saved, model=None, **more):
    """Restore a save in a new process, and return what its next one holds."""
    kept, trainer = Attributes(NAMESPACE), trainer_of(model, **more)
    kept.begin(trainer)
    kept.restore(trainer, saved)
    return kept.state(trainer)


class Point(NamedTuple):
    x: int
    more: Any


@dataclass(frozen=True)
class Progress:
    step: int
    more: Any


class Words(list):
    """A container of the project's own class."""


class Stage(Enum):
    WARM_UP, MAIN = "warm-up", "main"


VALUES = [
    3, 0.5, True, None, "text", [1, [2.5, "a"]], (1, (2,)), {1, 2}, frozenset({"a"}), deque([1, 2], maxlen=2),
    {"a": [1], 2: {"b": None}}, OrderedDict(b=1, a=2), Counter("aab"), defaultdict(list, a=[1]), defaultdict(None, a=1),
    [{"loss": 0.25}, {"loss": 0.5}], Stage.MAIN, 1 + 2j, b"ab", bytearray(b"ab"), array("d", [0.5]), Point(1, [2]),
    Progress(3, (Progress(4, "a"), Stage.MAIN)), torch.Size([2, 3]), torch.float16, torch.device("cpu"),
    torch.arange(3), torch.ones(2, dtype=torch.bfloat16), EMPTY, TRACED * 2, TRACED,
    numpy.eye(2), numpy.arange(3)[::2], numpy.float32(0.1), numpy.bool_(True), numpy.array(2),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_and_their_types(value):
    model, saved = Model(), Model()
    for each in (model, saved):
        each.absent = torch.nn.Parameter(torch.empty(0))  # as one that is on other ranks
    restored(saved_of(lambda owner: setattr(owner, "value", [value]), saved), model)
    (found,) = model.value
    if isinstance(value, torch.Tensor):
        assert torch.equal(found, value)
        assert (found.dtype, found.requires_grad) == (value.dtype, value is TRACED)
    elif isinstance(value, (numpy.ndarray, numpy.generic)):
        assert numpy.array_equal(found, value)
        assert (found.dtype, type(found)) == (value.dtype, type(value))
    else:
        assert (found, type(found)) == (value, type(value))
    assert getattr(found, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(found, "default_factory", None) is getattr(value, "default_factory", None)


class Unmeasured:
    """As the classes of typing for which darts' models have an attribute."""

    def __len__(self):
        raise TypeError


class Unknowing:
    """As handles of processes elsewhere, or pydantic's for classes to come: these answer to each name with an error."""

    __slots__ = ()

    def __getattr__(self, name):
        raise RuntimeError(name)


class Recorded(random.Random):
    """Numbers that are counted, with a state that no save can hold."""

    position = 0

    def random(self):
        self.position += 1
        return self.position

    def getstate(self):
        return object()


def list_of_itself():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "value_of",
    [
        lambda model: [model.layer.weight],
        lambda model: model.layer.weight.data[:1],
        lambda model: [model.layer],
        lambda model: {"a": object()},
        lambda model: Unmeasured(),
        lambda model: Unknowing(),
        lambda model: list_of_itself(),
        lambda model: defaultdict(lambda: 0),
        lambda model: numpy.array(["a", None]),
        lambda model: numpy.ones(2, numpy.longdouble),
        lambda model: torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1)),
    ],
    ids=[
        "a weight",
        "a part of a weight",
        "a layer",
        "an object",
        "a length that raises",
        "names that raise",
        "a list of itself",
        "a function",
        "objects",
        "numbers that torch has not",
        "a sparse tensor",
    ],
)
def test_parts_of_the_model_and_other_objects_are_not_saved(value_of):
    def train(model):
        model.value = value_of(model)
        # What torchmetrics and Lightning keep is theirs, too.
        model.mean.update(1.0)
        model._current_fx_name = "training_step"

    assert saved_of(train) == {}


@pytest.mark.parametrize(
    "generator_of",
    [
        lambda: torch.Generator().manual_seed(3),
        lambda: numpy.random.default_rng(3),
        lambda: numpy.random.RandomState(3),
        lambda: random.Random(3),
    ],
    ids=["torch", "numpy", "RandomState", "python"],
)
def test_generators(generator_of):
    def draw(generator):
        return (
            torch.rand(1, generator=generator).item() if isinstance(generator, torch.Generator) else generator.random()
        )

    models = [Model(), Model()]
    for each in models:
        each.value = generator_of()
    restored(saved_of(lambda model: draw(model.value), models[0]), models[1])
    assert draw(models[1].value) == draw(models[0].value) != draw(generator_of())
    # Also of one that the first step makes.
    late = Model()
    late.value = None
    restored({"model": {"value": saved_of(lambda model: draw(model.value), models[0])["model"]["value"]}}, late)
    assert type(late.value) is type(models[0].value)
    assert draw(late.value) == draw(models[0].value)


def test_a_generator_of_a_sampler_stays_the_samplers():
    model = Model()
    model.value = torch.Generator()
    loader = DataLoader([1, 2], shuffle=True, generator=model.value)
    assert saved_after(trainer_of(model, data=[loader]), lambda: list(loader)) == {}


def test_a_generator_with_a_state_of_its_own():
    models = [Model(), Model()]
    for each in models:
        each.value = Recorded()
    restored(saved_of(lambda model: model.value.random(), models[0]), models[1])
    assert models[1].value.random() == models[0].value.random() == 2


def test_the_text_of_a_parameter_is_not_made(monkeypatch):
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model.layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    monkeypatch.setattr(torch.nn.Parameter, "__repr__", lambda _: pytest.fail("it takes a copy from the device"))
    assert len(optimizer.state) == 2
    assert saved_after(trainer_of(model, optimizers=[optimizer]), lambda: None) == {}


def test_settings_of_layers_and_buffers_outside_of_the_state():
    def train(model):
        model.drop.p = 0.25
        model.queue += 1
        model.kept += 1

    models = [Model(), Model()]
    for each in models:
        each.drop = torch.nn.Dropout()
        each.register_buffer("queue", torch.zeros(2), persistent=False)
        each.register_buffer("kept", torch.zeros(2))
    saved = saved_of(train, models[0])
    restored(saved, models[1])
    assert models[1].drop.p == 0.25
    assert saved["model.drop"] == {"p": 0.25}
    assert dict(models[1].named_buffers())["queue"].tolist() == [1.0, 1.0]
    assert saved["model"].keys() == {"queue"}  # the other buffer is in the model's state


class Data(torch.utils.data.Dataset):
    epoch = 0

    def __len__(self):
        return 4


class Named(Data):
    def __init__(self):
        self.names = ["a"] * 10**6


class Module(pl.LightningDataModule):
    stage = 0


class StatefulModule(Module):
    def state_dict(self):
        return {}


@pytest.mark.parametrize("cls", [Module, StatefulModule])
def test_data_sets_and_data_modules(lines, cls):
    def new():
        return [Named(), Named(), cls()]

    def train():
        inner.epoch, outer.epoch, module.stage = 3, 4, 5

    def parts(inner, outer, module):
        return {"data": [DataLoader(torch.utils.data.Subset(inner, [0, 1])), outer], "datamodule": module}

    inner, outer, module = new()
    saved = saved_after(trainer_of(**parts(inner, outer, module)), train)
    inner, outer, module = new()
    restored(saved, **parts(inner, outer, module))
    assert lines == []  # the names take much, and stay what they are
    assert (inner.epoch, outer.epoch, module.stage) == (3, 4, 0 if cls is StatefulModule else 5)


class Reads(Data):
    """Keeps what it has read of one file (matgl), by a number that tells which; draws and orders by attributes, too."""

    def __init__(self):
        self.number, self.is_open, self.part = numpy.int64(-1), False, None
        self.order, self.generator = [0, 1], torch.Generator().manual_seed(3)


def test_a_data_set_reads_again_what_it_had_made_on_demand():
    def train():
        data.number, data.is_open, data.part, data.order = numpy.int64(2), True, [object()], [1, 0]
        torch.rand(1, generator=data.generator)

    data, again = Reads(), Reads()
    restored(saved_after(trainer_of(data=[data]), train), data=[again])
    assert (again.number, again.is_open, again.part, again.order) == (-1, False, None, [1, 0])
    assert torch.equal(again.generator.get_state(), data.generator.get_state())


class Counting(torch.optim.SGD):
    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)
        self.count = torch.tensor(0)
        self.kept = []

    def step(self, *_, **__):
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["mean"] = torch.ones(2)
        self.kept = [each["mean"] for each in self.state.values()]


class StatefulCounting(Counting):
    def state_dict(self):
        return {**super().state_dict(), "count": self.count}


@pytest.mark.parametrize(("kind", "expected"), [(Counting, 1), (StatefulCounting, 0)])
def test_optimizers_of_the_project(lines, kind, expected):
    """Not what their ``state_dict`` holds, also under another name."""
    optimizer, again = kind(Model()), kind(Model())
    saved = saved_after(trainer_of(optimizers=[optimizer]), optimizer.step)
    restored(saved, optimizers=[again])
    assert (again.count, again.kept, again.state) == (expected, [], {})
    assert len(lines) == (kind is Counting)
    assert all("attribute optimizer 0 Counting.kept" in line for line in lines)


def test_what_did_not_change_in_the_training_keeps_the_value_of_the_new_process():
    model, again = Model(), Model()
    model.folder, model.count, again.folder, again.count = "/first", 1, "/second", 1
    left = restored(saved_of(lambda owner: setattr(owner, "count", 5), model), again)
    assert (again.folder, again.count) == ("/second", 5)
    assert left == {"model": {"count": 5}}  # saved again, though this process has not changed it


def test_before_the_loaders_only_what_is_there_is_set():
    model, new = Model(), Model()
    model.size, new.size = 1, 1

    def change():
        model.size, model.later = 2, 3
        model.layer.requires_grad_(False)

    saved = saved_after(trainer_of(model), change)
    kept, trainer = Attributes(NAMESPACE), trainer_of(new)
    for adds, expected in ((False, (2, None, True)), (True, (2, 3, False))):
        kept.restore(trainer, saved, adds=adds)
        assert (new.size, getattr(new, "later", None), new.layer.weight.requires_grad) == expected


def test_containers_and_tensors_are_set_in_place():
    again = Model()
    again.value = held = [torch.zeros(1)]
    again.state = state = torch.zeros(2)

    def train(model):
        model.value, model.state = [torch.ones(1), torch.ones(1)], torch.ones(2)

    restored(saved_of(train), again)
    assert (again.value is held, len(held)) == (True, 2)
    assert (again.state is state, state.tolist()) == (True, [1.0, 1.0])


def test_what_cannot_be_saved_is_named_once_and_the_rest_is_saved(lines):
    model = Model()
    model.words, model.rule, model.bank = ["a"] * 10**6, torch.nn.functional.mse_loss, torch.zeros(2 * 10**6)
    model.table, model.frozen = torch.zeros(2 * 10**6), [torch.nn.Linear(1200, 1200)]
    model.loss, model.metrics, model.raw = torch.nn.MSELoss(), torch.nn.ModuleList(), Words()
    model.lstm, model.lazy = torch.nn.LSTM(2, 2), torch.nn.LazyLinear(2)
    trainer, kept = trainer_of(model), Attributes(NAMESPACE)
    kept.begin(trainer)
    model.first, model.memory, model.last = 1, deque(range(10**6)), [torch.zeros(10)]
    model.rule, model.loss = torch.nn.functional.l1_loss, torch.nn.L1Loss()
    # Which torch changes, and torchmetrics: nothing to tell.
    model.lazy(torch.zeros(1, 2))
    model.lstm.weight_hh_l0.data.add_(1)
    model.raw.append("more")
    model.metrics.append(type("Own", (torchmetrics.MeanMetric,), {})())
    # As Lightning does with DDP and FSDP at the first step (``_ForwardRedirection``).
    model.forward = model.forward
    model.bank[0] = 1
    found = [kept.state(trainer), kept.state(trainer)]
    assert [list(each["model"]) for each in found] == [["first", "last"]] * 2
    assert lines == [
        "Not saved for a restart: the attribute model.loss, which has become a L1Loss.",
        "Not saved for a restart: the attribute model.rule, which is no number, text, tensor, array, "
        "generator or container of these.",
        "Not saved for a restart: the attribute model.bank, which takes more than 4 MiB.",
        "Not saved for a restart: the attribute model.raw, which is no number, text, tensor, array, "
        "generator or container of these.",
        "Not saved for a restart: the attribute model.memory, which takes more than 4 MiB.",
    ]


@pytest.mark.parametrize(("name", "owner"), [("__main__", "script"), ("data", "module data")])
def test_global_variables(lines, monkeypatch, name, owner):
    def start():
        module: Any = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        module.__file__ = __file__
        module.count, module.rng, module.table, module.history = 0, numpy.random.default_rng(3), torch.zeros(2), []
        module.meter, module.rule = Own(), len
        module.augment, of_class = (type("Compose", (), {"__module__": "library"})() for _ in range(2))
        module.Meter = type("Meter", (), {"__module__": name, "made": 0, "augment": of_class})
        module.metric = torchmetrics.SumMetric()
        module.augment.rng, of_class.rng = map(numpy.random.default_rng, (4, 5))
        return module

    def generators():
        return (each.rng for each in (module, module.augment, module.Meter.augment))

    def train():
        module.count, module.table, module.meter.value, module.rule, module.Meter.made = 3, torch.ones(2), 4, abs, 5
        module.history.append(0.5)
        module.metric.update(2)
        module.drawn = sum(each.random() for each in generators())

    module = start()
    saved = saved_after(trainer_of(), train)
    states = [each.bit_generator.state for each in generators()]
    module = start()
    restored(saved)
    assert (module.count, module.table.tolist(), module.history) == (3, [1.0, 1.0], [0.5])
    assert (module.meter.value, module.Meter.made, module.metric.compute()) == (4, 5, 2)
    assert [each.bit_generator.state for each in generators()] == states
    assert module.drawn == saved[owner]["drawn"]
    what = "which is no number, text, tensor, array, generator or container of these."
    assert lines == [f"Not saved for a restart: the attribute {owner}.rule, {what}"]


def test_modules_that_come_and_go(monkeypatch):
    """One takes the place of another, and a thread imports one while a save looks at all of them."""

    class Importing:
        @property
        def __class__(self):
            monkeypatch.setitem(sys.modules, f"imported-{len(sys.modules)}", ModuleType("imported"))
            return object

    def loaded(name):
        module: Any = ModuleType(name)
        module.__file__, module.count = __file__, 1
        monkeypatch.setitem(sys.modules, name, module)
        return module

    loaded("old")
    for _ in range(2):  # torch imports at the first save
        assert saved_of(lambda owner: None) == {}
    monkeypatch.delitem(sys.modules, "old")
    new = loaded("new")
    assert saved_of(lambda owner: setattr(new, "count", 2)) == {"module new": {"count": 2}}
    monkeypatch.setitem(sys.modules, "importing", Importing())
    assert saved_of(lambda owner: None) == {}


def test_what_hooks_set_is_saved_but_for_texts_readings_of_clocks_and_other_objects(lines):
    model: Any = Model()
    kept, trainer = Attributes(NAMESPACE), trainer_of(model)
    kept.start(trainer)
    model.anchor, model.lr, model.teacher = torch.ones(2), 0.5, [torch.nn.Linear(1, 1)]
    model.folder, model.started, model.clock, model.rule = (
        "a",
        time.time(),
        time.perf_counter_ns(),
        torch.nn.functional.l1_loss,
    )
    kept.begin(trainer)
    model.lr = 0.25
    saved = kept.state(trainer)
    assert saved.pop(MADE) == {"model": ["anchor"], "model.teacher[0]": ["state", "metrics"]}
    assert (set(saved), set(saved["model"])) == ({"model", "model.teacher[0]"}, {"anchor", "lr"})
    assert saved["model"]["lr"] == 0.25
    assert lines == []


def test_numbers_of_a_module_that_tell_what_is_made_on_demand_are_made_anew(lines, monkeypatch):
    module: Any = ModuleType("data")
    module.__file__, module.client, module.is_ready, module.history = __file__, None, False, []
    monkeypatch.setitem(sys.modules, "data", module)

    def train():
        module.client, module.is_ready = object(), True
        module.history.append(0.5)
        later: Any = ModuleType("later")
        later.__file__, later.count = __file__, 1
        monkeypatch.setitem(sys.modules, "later", later)

    assert saved_after(trainer_of(), train) == {"module data": {"history": ("list", [0.5])}}
    what = "which is no number, text, tensor, array, generator or container of these."
    assert lines == [f"Not saved for a restart: the attribute module data.client, {what}"]


def test_what_is_not_a_number_has_not_changed():
    model: Any = Model()
    model.best, model.table = float("nan"), torch.tensor([float("nan"), 1.0])
    assert saved_of(lambda owner: None, model) == {}


@pytest.mark.parametrize(
    ("value", "new_class", "why"),
    [
        (Stage.MAIN, Enum("Stage", "OTHER"), "'MAIN'"),
        (Point(1, 2), NamedTuple("Point", [("y", int)]), "its class has changed"),
    ],
    ids=["enumeration", "record"],
)
def test_a_value_whose_class_has_changed_is_told(lines, monkeypatch, value, new_class, why):
    saved = saved_of(lambda owner: setattr(owner, "value", value))
    monkeypatch.setattr(f"{__name__}.{type(value).__name__}", new_class)
    assert restored(saved) == {}
    assert lines == [f"Not restored: the attribute value of a Model ({why})"]


def test_a_data_sets_other_transform_is_told(lines):
    data: Any = Data()
    module: Any = Module()
    data.transform, data.file, data.cache, module.transform = torch.nn.ReLU(), None, [object()], len

    def train():
        data.transform, data.file, data.cache, module.transform = torch.nn.Tanh(), io.BytesIO(), [object()], abs
        data.reader = len

    saved_after(trainer_of(data=[data], datamodule=module), train)
    what = "which is no number, text, tensor, array, generator or container of these."
    assert sorted(lines) == [
        f"Not saved for a restart: the attribute {name}.transform, {what}"
        for name in ("data module", "loader 0.dataset Data")
    ]


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 0

    def change(self):
        self.value = 1


class Locked:
    """Whose attributes nothing but its own methods sets."""

    def __init__(self):
        vars(self)["value"] = 0

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def change(self):
        vars(self)["value"] = 1


@pytest.mark.parametrize("cls", [Slotted, Locked])
def test_objects_that_keep_attributes_in_their_own_way(cls):
    models = [Model(), Model()]
    for each in models:
        each.held = cls()
    restored(saved_of(lambda model: model.held.change(), models[0]), models[1])
    assert models[1].held.value == 1


def drawing():
    generator = None

    def draw():
        nonlocal generator
        generator = generator or random.Random(3)
        return generator.random()

    return draw


class Late(Locked):
    def __init__(self):
        vars(self)["generator"] = None

    def __call__(self):
        own = vars(self)
        own["generator"] = own["generator"] or random.Random(3)
        return own["generator"].random()


@pytest.mark.parametrize("make", [drawing, Late])
def test_generators_that_are_made_on_demand(make):
    models = [Model(), Model()]
    for each in models:
        each.draw = make()
    restored(saved_of(lambda model: model.draw(), models[0]), models[1])
    assert models[0].draw() == models[1].draw()


def test_a_record_that_others_share_is_replaced():
    shared, models = Progress(0, None), [Model(), Model()]
    for each in models:
        each.progress = shared
    restored(saved_of(lambda model: setattr(model, "progress", Progress(3, torch.ones(2))), models[0]), models[1])
    assert (models[1].progress.step, models[1].progress.more.tolist(), shared.step) == (3, [1.0, 1.0], 0)


def counting():
    number, log, total, best = 0, [], torch.zeros(()), None

    def count(*, kept=[0]):  # noqa: B006
        nonlocal number, total, best
        number += 1
        total = total + 1
        best = number if best is None else best + 1
        kept[0] += 1
        log.append(number)
        vars(count)["calls"] += 1
        return number, len(log), kept[0], vars(count)["calls"], int(total), best

    vars(count)["calls"] = 0
    return count


@pytest.mark.parametrize("hold", [
    lambda count: count, lambda count: {"a": OrderedDict(b=deque([count]))}, lambda count: partial(count),
    lambda count: SimpleNamespace(call=count), lambda count: [(count,)],
], ids=["function", "containers", "partial", "object", "tuple"])  # fmt: skip
def test_variables_of_functions(hold):
    model, again = Model(), Model()
    first, second = counting(), counting()
    model.rule, again.rule = hold(first), hold(second)
    restored(saved_of(lambda _: first(), model), again)
    assert first() == second() == (2,) * 6


def test_objects_of_bound_methods():
    class Meter(Own):
        def add(self):
            self.value += 1
            return self.value

    Meter.__module__ = __name__
    models = [Model(), Model()]
    for each in models:
        each.add, each.draw = Meter().add, random.Random(3).random
    restored(saved_of(lambda model: (model.add(), model.draw()), models[0]), models[1])
    assert (models[0].add(), models[0].draw()) == (models[1].add(), models[1].draw())
    assert models[0].add() == 3


def test_iterators_are_told(lines):
    model: Any = Model()
    model.numbers, model.batches = itertools.count(), iter([1, 2, 3])
    model.loaders = pl.utilities.CombinedLoader([DataLoader(range(3))])  # Lightning begins it anew
    saved_of(lambda model: next(model.numbers), model)
    assert lines == [
        f"Not saved for a restart: the attribute model.{name}, which is an iterator." for name in ("numbers", "batches")
    ]


class Own:
    """A plain object of a project, which holds another one, and itself."""

    def __init__(self):
        self.inner, self.me, self.value, self._buffers = SimpleNamespace(value=0), self, 0, [0]


@pytest.mark.parametrize(
    ("hold", "count"), [(lambda own: own, 2), (lambda own: [None, own], 2), (lambda own: {"a": own}, 2),
                        (lambda own: Fraction(1, 2), 0), (lambda own: logging.getLogger(), 0)],
    ids=["attribute", "list", "dictionary", "number", "logger"],
)  # fmt: skip
def test_plain_objects_that_a_model_holds(hold, count):
    def made():
        model, own = Model(), Own()
        model.held = hold(own)
        return model, own

    (model, before), (again, after) = made(), made()

    def change(_):
        before.value, before.inner.value = 1, 2

    assert len(restored(saved_of(change, model), again)) == count
    assert (after.value, after.inner.value) == ((1, 2) if count else (0, 0))


class Watched(torch.optim.SGD):
    """As of a library."""

    __module__ = "torch.optim"
    problem = None

    def load_state_dict(self, state_dict):
        if self.problem is not None:
            raise self.problem
        super().load_state_dict(state_dict)


def test_a_state_that_cannot_be_loaded_is_told(lines):
    def made():
        model = Model()
        model.watched = [torch.optim.SGD(model.parameters(), lr=1.0), Watched(model.parameters(), lr=1.0)]
        return model

    def change(model):
        for each in model.watched:
            each.param_groups[0]["lr"] = 0.5

    saved, again = saved_of(change, made()), made()
    again.watched[1].problem = ValueError("another group")
    restored(saved, again)
    assert [each.param_groups[0]["lr"] for each in again.watched] == [0.5, 1.0]
    assert lines == ["Not restored: the state of a Watched: another group"]


@pytest.mark.parametrize("other", [1, 2])
def test_what_is_as_large_as_the_model_is_saved_once_where_all_ranks_have_the_same(lines, other):
    def saved_by(rank, value):
        model, kept = Model(), Attributes(NAMESPACE)
        model.large, model.average = torch.nn.Linear(1200, 1200), {"weight": torch.zeros(1200, 1200)}
        model.held = Own()
        trainer = trainer_of(model, is_global_zero=rank == 0)
        kept.begin(trainer)
        model.average["weight"].fill_(value)
        return kept.state(trainer), kept.take_large()

    (first, large), (second, of_second) = saved_by(0, 1), saved_by(1, other)
    assert (list(large["model"]), of_second) == (["average"], {})
    assert with_large(first, first, large) == large
    assert with_large(second, first, large) == (large if other == 1 else {"model": {}})
    assert lines == ["Not restored: model.average, which is large and differed between ranks."] * (other == 2)


def test_a_search_within_the_training_is_no_start_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def searching(pl, size):
        class Searching(net(pl)):
            lr = 0.01

            def on_train_epoch_start(self):
                if self.current_epoch == 0:
                    self.first = 1

            def train_dataloader(self):
                return shuffled(size)

        class AtEpochOne(pl.callbacks.LearningRateFinder):
            def on_fit_start(self, *_):
                pass

            def on_train_epoch_start(self, trainer, pl_module):
                if trainer.current_epoch == 1:
                    self.lr_find(trainer, pl_module)

        return Setup(Searching(), None, None, {"callbacks": [AtEpochOne(num_training_steps=2)]})

    train_fit(searching, Size(epochs=2, batches=4), tmp_path, enable_checkpointing=False)
    last = torch.load(next(tmp_path.glob("*/fit-0/" + saves_of(tmp_path)[-1]["name"])))
    assert last["lightning_sm"]["ranks"][0]["attributes"]["model"] == {"first": 1}


def lazy(pl, size):
    model = net(pl)()
    model.layers = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(1))
    return Setup(model, shuffled(size))


def late(pl, size):
    class Late(net(pl)):
        def configure_optimizers(self):
            self.last = torch.nn.Linear(1, 1)
            return torch.optim.Adam(self.parameters(), lr=0.01)

        def loss(self, batch):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.last(self.layers(inputs)), targets)

    return Setup(Late(), shuffled(size))


@pytest.mark.parametrize("setup", [lazy, late])
def test_layers_that_the_first_batch_or_configure_optimizers_makes(tmp_path, monkeypatch, setup):
    monkeypatch.chdir(tmp_path)
    assert differences(setup, tmp_path, few) == {}
