"""The library, and its set-ups of models, schedules, logged values and loaders."""

import copy
import os
import random
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Callable, Dict

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.helpers.tiny import with_batch_norm

BATCH_SIZE = 4
FACTORS: Dict[str, float] = {}
SETUPS: Dict[str, Callable[[Any, "Size"], "Setup"]] = {}


@dataclass(frozen=True)
class Size:
    """How much there is to train.

    Args:
        epochs: Their number.
        batches: Batches of an epoch, for each rank.
        ranks: How many ranks share the data.
    """

    epochs: int = 3
    batches: int = 6
    ranks: int = 1

    @property
    def samples(self) -> int:
        return self.batches * self.ranks * BATCH_SIZE


@dataclass
class Setup:
    """One training.

    Args:
        model: The model.
        train: The loader, or loaders, of the training data.
        val: The loader for validation, if there is any.
        arguments: Further arguments of the ``Trainer``, ``callbacks`` among them.
    """

    model: Any
    train: Any
    val: Any = None
    arguments: Dict[str, Any] = field(default_factory=dict)


def setup(function):
    """Add a function to the library under its name."""
    SETUPS[function.__name__] = function
    return function


class Numbers(Dataset):
    """Samples of four numbers and a target; ``noisy`` ones differ each time, by all three sources of random numbers."""

    def __init__(self, size, noisy=False):
        self.data = torch.randn(size, 4, generator=torch.Generator().manual_seed(1))
        self.noisy = noisy

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        sample = self.data[index]
        if self.noisy:
            sample = sample + torch.rand(1) + random.gauss(0, 1) + numpy.random.normal()
        return sample.float(), self.data[index].sum().reshape(1)


def descent(module):
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


def net(pl, optimizer=descent):
    """A class of small models with dropout; what a set-up needs beyond that stands in a subclass.

    Args:
        pl: A Lightning namespace.
        optimizer: Makes what the model's ``configure_optimizers`` returns.
    """

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))

        def loss(self, batch):
            inputs, targets = batch
            return nn.functional.mse_loss(self.layers(inputs), targets)

        def training_step(self, batch, batch_idx):
            return self.loss(batch)

        def validation_step(self, batch, batch_idx):
            # A validation that draws, as one that samples from the model does.
            self.log("val_loss", self.loss(batch) + 0 * torch.rand(1).sum(), sync_dist=True)

        def configure_optimizers(self):
            return optimizer(self)

    return Net


def sampled(pl, size, sampler, noisy=False, **arguments):
    """A set-up with a sampler of the project's own."""
    data = DataLoader(Numbers(size.samples, noisy), batch_size=BATCH_SIZE, sampler=sampler, **arguments)
    return Setup(net(pl)(), data)


def shuffled(size, noisy=False, **arguments):
    return DataLoader(Numbers(size.samples, noisy), batch_size=BATCH_SIZE, shuffle=True, **arguments)


def in_order(batches=2):
    """A loader for validation."""
    return DataLoader(Numbers(batches * BATCH_SIZE), batch_size=BATCH_SIZE)


# --- models and optimizers


@setup
def plain(pl, size):
    return Setup(net(pl)(), shuffled(size))


@setup
def batch_norm(pl, size):
    class Net(net(pl)):
        def on_validation_epoch_start(self):
            # Those of this rank: with the first batch DDP sets those of rank 0.
            self.log("mean", self.layers[1].running_mean.sum(), sync_dist=True)

    return Setup(with_batch_norm(Net()), shuffled(size), in_order())


@setup
def closure_optimizer(pl, size):
    return Setup(net(pl, lambda module: torch.optim.LBFGS(module.parameters(), lr=0.01, max_iter=3))(), shuffled(size))


def _two_optimizers(module):
    first, last = module.layers[0].parameters(), module.layers[2].parameters()
    return [torch.optim.SGD(first, lr=0.01, momentum=0.9), torch.optim.Adam(last, lr=0.01)]


@setup
def manual_optimization(pl, size):
    class Net(net(pl, _two_optimizers)):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            # Two optimizers that take turns, as for a generator and its critic.
            optimizer = self.optimizers()[batch_idx % 2]
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    return Setup(Net(), shuffled(size))


@setup
def gradients_over_batches(pl, size):
    """One of two optimizers uses the gradients of five batches, which go on from one epoch to the next."""

    class Net(net(pl, _two_optimizers)):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.batches = 0

        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            first.zero_grad()
            self.manual_backward(self.loss(batch))
            first.step()
            self.batches += 1
            if self.batches % 5 == 0:
                second.step()
                second.zero_grad()

    return Setup(Net(), shuffled(size))


@setup
def private_optimizer(pl, size):
    """An optimizer and a schedule that Lightning does not know."""

    class Net(net(pl, lambda module: None)):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)

        def training_step(self, batch, batch_idx):
            self.optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            self.optimizer.step()
            self.schedule.step()

    return Setup(Net(), shuffled(size))


@setup
def changed_optimizers(pl, size):
    """A group that a program adds to its optimizer when it trains another layer, and another optimizer later on."""

    class Net(net(pl)):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.optimizers().add_param_group({"params": list(self.layers[0].parameters()), "lr": 0.001})
            if self.current_epoch == 2:
                self.trainer.strategy.setup_optimizers(self.trainer)

        def configure_optimizers(self):
            if self.current_epoch < 2:
                return torch.optim.Adam(self.layers[1:].parameters(), lr=0.01)
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    return Setup(Net(), shuffled(size))


@setup
def assigned_optimizers(pl, size):
    """Another optimizer and other schedulers, which a program assigns to the strategy."""

    class Assigns(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            config, schedulers = pl.utilities.types.LRSchedulerConfig, torch.optim.lr_scheduler
            if trainer.current_epoch == 1:
                # The scheduler of the first one goes on, and changes nothing that is trained.
                trainer.strategy.optimizers = [torch.optim.SGD(pl_module.parameters(), lr=0.05, momentum=0.9)]
            if trainer.current_epoch == 2:
                scheduler = schedulers.ExponentialLR(trainer.optimizers[0], 0.8)
                trainer.strategy.lr_scheduler_configs = [config(scheduler, interval="step")]

    def first(optimizer, trainer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 3)

    return Setup(scheduled(pl, first, interval="step"), shuffled(size), arguments={"callbacks": [Assigns()]})


@setup
def parameters_beside_the_model(pl, size):
    """The coefficient of an equation, and layers in a list: no part of the model's state."""

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.equation = {"coefficient": nn.Parameter(torch.ones(()))}
            self.hidden = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))]

        def loss(self, batch):
            inputs, targets = batch
            factor = self.equation["coefficient"].exp() + self.hidden[0][1].running_mean.square().sum()
            return super().loss((self.hidden[0](inputs), targets)) * factor

        def configure_optimizers(self):
            beside = [*self.equation.values(), *self.hidden[0].parameters()]
            return torch.optim.Adam([*self.parameters(), *beside], lr=0.01)

    return Setup(Net(), shuffled(size))


class Weighing:
    """Its variables are of the class, beside the module's."""

    batches = 0
    noise: Any = None
    norm: Any = None


@setup
def global_variables(pl, size):
    """A module's and a class's own variables, which training reads and changes."""

    class Net(net(pl)):
        def training_step(self, batch, batch_idx):
            Weighing.batches += 1
            Weighing.norm(batch[0])
            FACTORS["batches"] = 1 / Weighing.batches + Weighing.noise.random() + float(Weighing.norm.running_mean[0])
            return super().training_step(batch, batch_idx)

        def loss(self, batch):
            return super().loss(batch) * FACTORS["batches"]

    FACTORS["batches"], Weighing.batches, Weighing.noise = 1.0, 0, numpy.random.default_rng(5)
    Weighing.norm = nn.BatchNorm1d(4)
    return Setup(Net(), shuffled(size))


@dataclass(frozen=True)
class Progress:
    steps: int = 0
    sums: Any = (0.0,)


def decaying():
    """As a handwritten schedule: the number of its calls is the function's own."""
    calls, generator = 0, random.Random(6)

    def factor(*_):
        nonlocal calls
        calls += 1
        return 1 / calls + generator.random()

    return factor


@setup
def functions_and_records(pl, size):
    """State in closures, also a schedule's, hyperparameters, a library's object, the trainer, a record of each step."""

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"temperature": 1.0})
            self.rules, self.progress = {"weights": OrderedDict(factor=partial(decaying()))}, Progress()
            self.sobol = torch.quasirandom.SobolEngine(1)

        def loss(self, batch):
            loss = super().loss(batch) * (
                float(self.sobol.draw()) + self.rules["weights"]["factor"]() + 0.1 * self.progress.sums[0]
            )
            if self.training:
                self.progress = replace(self.progress, steps=self.progress.steps + 1, sums=(float(loss.detach()) % 1,))
                self.hparams.temperature *= 0.9
                self.trainer.trained = getattr(self.trainer, "trained", 0) + 1
                loss = loss * self.hparams.temperature + loss / self.trainer.trained
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decaying())
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    return Setup(Net(), shuffled(size))


@setup
def set_by_hooks(pl, size):
    """What hooks derive from the first weights and the first learning rate, before the first batch."""

    class Warms(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.base = trainer.optimizers[0].param_groups[0]["lr"]

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx, *_):
            trainer.optimizers[0].param_groups[0]["lr"] = self.base / (1 + trainer.global_step)

    class Net(net(pl)):
        def on_fit_start(self):
            self.anchor = [each.detach().clone() for each in self.parameters()]

        def on_train_start(self):
            self.teacher = [copy.deepcopy(self.layers)]

        def loss(self, batch):
            inputs, _ = batch
            distance = sum((one - other).square().sum() for one, other in zip(self.parameters(), self.anchor))
            teacher = self.teacher[0](inputs).detach() if hasattr(self, "teacher") else 0.0
            return super().loss(batch) + distance + (self.layers(inputs) - teacher).square().mean()

    return Setup(Net(), shuffled(size), arguments={"callbacks": [Warms()]})


@setup
def accumulation(pl, size):
    return Setup(net(pl)(), shuffled(size, noisy=True), arguments={"accumulate_grad_batches": 4})


@setup
def accumulation_by_epoch(pl, size):
    schedule = pl.callbacks.GradientAccumulationScheduler({0: 2, 1: 1, 2: 3})
    return Setup(net(pl)(), shuffled(size), arguments={"callbacks": [schedule]})


# --- schedulers


def scheduled(pl, make, base=None, **config):
    """A model with a schedule, which a function makes of its optimizer and trainer."""

    class Net(base or net(pl)):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer, self.trainer), **config}}

    return Net()


def plateau(optimizer, trainer):
    # A threshold that no loss reaches: each time that it is asked it lowers the learning rate.
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7, threshold=10.0)


def _planned(pl):
    """A model whose schedule asks for the number of all steps, for which Lightning makes the loaders first."""

    def one_cycle(optimizer, trainer):
        steps = int(trainer.estimated_stepping_batches)
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)

    return scheduled(pl, one_cycle, interval="step")


@setup
def schedule_by_step(pl, size):
    return Setup(_planned(pl), shuffled(size, num_workers=1))


@setup
def schedule_by_epoch(pl, size):
    def make(optimizer, trainer):
        return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)

    return Setup(scheduled(pl, make, interval="epoch"), shuffled(size), in_order())


# --- validation


@setup
def validation_within_epochs(pl, size):
    return Setup(net(pl)(), shuffled(size), in_order(), {"val_check_interval": 3})


@setup
def validation_every_second_epoch(pl, size):
    return Setup(net(pl)(), shuffled(size), in_order(), {"check_val_every_n_epoch": 2})


# --- what is logged in an epoch


def logging_net(pl, **log):
    class Net(net(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log("train_loss", loss, sync_dist=True, **{"on_step": True, "on_epoch": True, **log})
            if batch_idx == 0:
                self.log("first_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

    return Net()


@setup
def epoch_mean(pl, size):
    return Setup(logging_net(pl), shuffled(size), in_order(), {"val_check_interval": 3})


@setup
def epoch_maximum(pl, size):
    return Setup(logging_net(pl, reduce_fx="max"), shuffled(size), arguments={"accumulate_grad_batches": 4})


@setup
def epoch_mean_of_uneven_batches(pl, size):
    return Setup(logging_net(pl), DataLoader(Numbers(size.samples - 1), batch_size=BATCH_SIZE, shuffle=True))


@setup
def early_stopping_on_epoch_mean(pl, size):
    stop = pl.callbacks.EarlyStopping("train_loss_epoch", patience=1, min_delta=0.5)
    return Setup(logging_net(pl), shuffled(size), arguments={"callbacks": [stop]})


@setup
def early_stopping_of_each_rank(pl, size):
    class Net(net(pl)):
        def validation_step(self, batch, batch_idx):
            # Without sync_dist: the first rank gets better, the second does not.
            self.log("score", float([10 - self.current_epoch, self.current_epoch][self.global_rank]))

    return Setup(Net(), shuffled(size), in_order(), {"callbacks": [pl.callbacks.EarlyStopping("score", patience=1)]})


@setup
def metric_of_the_run(pl, size):
    import torchmetrics

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.best = torchmetrics.MinMetric()

        def on_train_start(self):
            self.best.reset()

        def validation_step(self, batch, batch_idx):
            # As templates do that keep the best value of a run.
            self.best(self.loss(batch))

        def on_validation_epoch_end(self):
            self.log("best", self.best.compute(), sync_dist=True)

    return Setup(Net(), shuffled(size), in_order(), {"val_check_interval": 3})


# --- data


@setup
def noisy_data(pl, size):
    return Setup(net(pl)(), shuffled(size, noisy=True))


@setup
def workers(pl, size):
    return Setup(net(pl)(), shuffled(size, num_workers=1))


class Backwards(Sampler):
    """A batch sampler of a project's own, which draws its order when it is asked for an iterator."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        order = torch.randperm(self.size).tolist()
        return iter([order[start : start + BATCH_SIZE][::-1] for start in range(0, self.size, BATCH_SIZE)])

    def __len__(self):
        return self.size // BATCH_SIZE


@setup
def several_loaders(pl, size):
    class Net(net(pl)):
        def training_step(self, batch, batch_idx):
            return self.loss(batch["one"]) + self.loss(batch["other"])

    shorter = Size(size.epochs, max(2, size.batches - 2), size.ranks)
    return Setup(Net(), {"one": shuffled(size), "other": shuffled(shorter)})


@setup
def loaders_that_end(pl, size):
    """The shorter one is not begun again."""

    class Net(net(pl)):
        def training_step(self, batch, batch_idx):
            return sum(self.loss(each) for each in batch.values() if each is not None)

    shorter = Size(size.epochs, max(2, size.batches // 3), size.ranks)
    loaders = {"one": shuffled(size), "other": shuffled(shorter)}
    return Setup(Net(), pl.utilities.CombinedLoader(loaders, "max_size"))


@setup
def reloaded_loaders(pl, size):
    return Setup(net(pl)(), shuffled(size), arguments={"reload_dataloaders_every_n_epochs": 2})


@setup
def limited_steps(pl, size):
    limits = {"limit_train_batches": size.batches - 1, "max_steps": size.epochs * (size.batches - 1) - 2}
    return Setup(net(pl)(), shuffled(size), arguments={**limits, "max_epochs": -1})


# --- generators of its own


@setup
def loader_with_generator_and_workers(pl, size):
    return Setup(net(pl)(), shuffled(size, generator=torch.Generator().manual_seed(3), num_workers=1))


class Drawn(Sampler):
    """An order by something that draws, as by ``rng``; ``draw`` gets the number of samples."""

    def __init__(self, count, draw, rng=None):
        self.count, self.draw = count, draw
        self.rng = rng or getattr(draw, "__self__", None)

    def __iter__(self):
        return iter([int(index) for index in self.draw(self.count)])

    def __len__(self):
        return self.count


class Counting(Sampler):
    """Shuffles by a seed and the number of times it was asked."""

    def __init__(self, count):
        self.count = count
        self.epoch = 0

    def __iter__(self):
        generator = torch.Generator().manual_seed(100 + self.epoch)
        self.epoch += 1
        return iter(torch.randperm(self.count, generator=generator).tolist())

    def __len__(self):
        return self.count


class Lazy(Counting):
    """Draws one index after the other, from the process's random numbers or its own."""

    def __init__(self, count, rng):
        super().__init__(count)
        self.rng = rng

    def __iter__(self):
        for _ in range(self.count):
            yield self.rng.randrange(self.count)


@setup
def lazy_sampler(pl, size):
    return sampled(pl, size, Lazy(size.samples, random), noisy=True)


@setup
def lazy_sampler_with_generator_and_workers(pl, size):
    return sampled(pl, size, Lazy(size.samples, random.Random(5)), num_workers=1)


class OwnNoise(Numbers):
    """Adds noise by generators of its own, one of them a transform's."""

    def __init__(self, size):
        super().__init__(size)
        self.rng = numpy.random.default_rng(9)
        self.transforms = [Jitter()]

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        for transform in self.transforms:
            inputs = transform(inputs)
        return inputs + self.rng.normal(), target


class Compose:
    """A library's transform: as MONAI's, it seeds its generator anew when asked for its length.

    As Hugging Face's collators, it makes one for the first batch of each process.
    """

    def __init__(self):
        self.parts = {"first": (numpy.random.RandomState(2),)}
        self.seeds = [SimpleNamespace(rng=None, rng_pid=None)]

    def __len__(self):
        self.__init__()
        return 1

    def __call__(self, inputs):
        seed = self.seeds[0]
        if seed.rng_pid != os.getpid():
            seed.rng, seed.rng_pid = numpy.random.default_rng(4), os.getpid()
        return inputs + self.parts["first"][0].rand() + seed.rng.random()


# Of an installed package.
Compose.__module__ = "numpy"


class Jitter:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(2)

    def __call__(self, inputs):
        return inputs + torch.rand(1, generator=self.generator)


@setup
def library_with_generators(pl, size):
    """A library's objects that draw, in the data set and in the model."""

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.masks = {"noise": Compose()}

        def loss(self, batch):
            inputs, targets = batch
            return super().loss((self.masks["noise"](inputs), targets))

    data: Any = OwnNoise(size.samples)
    data.library = Compose()
    data.transforms.append(data.library)
    return Setup(Net(), DataLoader(data, batch_size=BATCH_SIZE, shuffle=True))


class CountingLoader(DataLoader):
    """Tells its sampler the epoch, which it counts itself."""

    epoch_of_loader = 0

    def __iter__(self):
        self.sampler.epoch = self.epoch_of_loader  # type: ignore[attr-defined]
        object.__setattr__(self, "epoch_of_loader", self.epoch_of_loader + 1)
        return super().__iter__()


# --- loaders that keep their own state, which Lightning restores from 2.2 on

if find_spec("torchdata") is not None:

    class Stateful(OwnNoise):
        """Keeps its generators in what a ``StatefulDataLoader`` asks for, in each worker process."""

        def state_dict(self):
            return {"numpy": self.rng.bit_generator.state, "torch": self.transforms[0].generator.get_state()}

        def load_state_dict(self, state):
            self.rng.bit_generator.state = state["numpy"]
            self.transforms[0].generator.set_state(state["torch"])

    def _stateful(data, **more):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=BATCH_SIZE, shuffle=True, **more)

    @setup
    def stateful_loader(pl, size):
        return Setup(net(pl)(), _stateful(Numbers(size.samples)))

    @setup
    def stateful_loader_made_early(pl, size):
        return Setup(_planned(pl), _stateful(Numbers(size.samples)))

    @setup
    def stateful_loader_with_workers(pl, size):
        return Setup(net(pl)(), _stateful(Stateful(size.samples), num_workers=1))
