"""Two models; the best of the first is loaded by the names of its folder, and the second is trained further."""

import numpy
from around import end
from darts import TimeSeries
from darts.models import NBEATSModel, TCNModel
from pytorch_lightning.callbacks import EarlyStopping

noise, time = numpy.random.default_rng(0), numpy.arange(120)
series = [
    TimeSeries.from_values((numpy.sin(time / 5 + i) + noise.normal(0, 0.1, 120)).astype("float32")) for i in range(3)
]


def arguments():
    trainer = {"accelerator": "cpu", "enable_progress_bar": False, "limit_train_batches": 6}
    trainer["callbacks"] = [EarlyStopping("val_loss", patience=3)]
    lengths = {"input_chunk_length": 12, "output_chunk_length": 4, "n_epochs": 3, "batch_size": 32}
    return {**lengths, "random_state": 3, "pl_trainer_kwargs": trainer}


place = {"model_name": "first", "work_dir": "darts"}
layers = {"num_stacks": 2, "num_blocks": 1, "num_layers": 1, "layer_widths": 8}
first = NBEATSModel(**layers, save_checkpoints=True, force_reset=True, **place, **arguments())
first.fit(series, val_series=series)
best = NBEATSModel.load_from_checkpoint(**place, best=True)
second = TCNModel(kernel_size=3, num_filters=3, **arguments())
second.fit(series, val_series=series)
second.fit(series, val_series=series, epochs=5)
end(*(each.model.state_dict() for each in (first, best, second)))
