"""A training script as AWS's own for SMP v1 of that time, without Lightning, on the stand-in and CPUs.

Each step is AWS's, in AWS's order: init, device, data by data-parallel rank with ``drop_last``, wrap, optimizer, step,
backward, ``StepOutput``, clipping outside of the step, save.
"""

import smdistributed.modelparallel.torch as smp
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.helpers.smp import SMPModel, data, flat


@smp.step
def train_step(model, inputs, targets):
    output = model(inputs)
    loss = torch.nn.functional.mse_loss(output, targets)
    model.backward(loss)
    return output, loss


@smp.step()
def evaluate(model, inputs):
    return model(inputs)


def main(folder):
    smp.init({"microbatches": 1, "ddp": True})  # the job's configuration overrides it
    device = torch.device("cuda", smp.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    dataset = data(1).dataset
    sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=False)
    batches = DataLoader(dataset, batch_size=10, sampler=sampler, drop_last=True)
    model = smp.DistributedModel(SMPModel().net.to(device))
    refused = _refusals(model)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.02))
    shapes, losses = [], []
    for batch in batches:
        optimizer.zero_grad()
        outputs, loss = train_step(model, batch["x"].to(device), batch["y"].to(device))
        shapes.append([list(outputs.concat().shape), list(outputs.stack().shape), len(outputs.outputs)])
        losses.append([float(loss.reduce_mean()), float(loss.reduce_sum())])
        optimizer.step()
    path = str(folder / "model.pt")
    if smp.dp_rank() == 0:
        smp.save({"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}, path, partial=True)
    state = model.state_dict()
    if smp.rank() == 0:
        smp.save(state, path, partial=False)
    smp.barrier()
    partial = smp.load(path, partial=True)["model"]
    return {
        "weights": flat(smp.load(path, partial=False)),
        "shapes": shapes,
        "losses": losses,
        "partial": [partial["_smp_is_partial"], sorted(set(partial) - {"_smp_is_partial"})],
        "evaluated": list(evaluate(model, batch["x"]).concat().shape),
        "microbatches": smp.state.cfg.microbatches,
        "refused": refused,
        "plain": _plain(batches),
    }


def _plain(batches):
    model = SMPModel().net
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
    return flat(model.state_dict())


def _refusals(model):
    """What the documentation excludes."""
    attempts = {
        "twice": lambda: smp.DistributedModel(torch.nn.Linear(2, 2)),
        "outside": lambda: model(torch.zeros(2, 4)),
        "early": model.state_dict,
        "indivisible": lambda: evaluate(model, torch.zeros(3, 4)),
        "other": lambda: smp.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1)),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except smp.SMPError as error:
            found[name] = str(error)
    return found
