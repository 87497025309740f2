"""A TemporalFusionTransformer with early stopping, and its best checkpoint."""

import lightning.pytorch as pl
import numpy
import pandas
from around import end
from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer

pl.seed_everything(7)
noise, time = numpy.random.default_rng(0), numpy.arange(60)
series = [
    {"time_idx": time, "series": str(i), "value": numpy.sin(time / 5 + i) + noise.normal(0, 0.1, 60) + 3}
    for i in range(4)
]
frame = pandas.concat([pandas.DataFrame(each) for each in series], ignore_index=True)
train = TimeSeriesDataSet(
    frame[frame.time_idx < 48], time_idx="time_idx", target="value", group_ids=["series"], max_encoder_length=12,
    min_encoder_length=6, max_prediction_length=4, static_categoricals=["series"],
    time_varying_known_reals=["time_idx"], time_varying_unknown_reals=["value"], add_relative_time_idx=True,
    add_encoder_length=True, target_normalizer=GroupNormalizer(groups=["series"], transformation="softplus"),
)  # fmt: skip
valid = TimeSeriesDataSet.from_dataset(train, frame, predict=True, stop_randomization=True)
model = TemporalFusionTransformer.from_dataset(
    train, learning_rate=0.03, hidden_size=8, attention_head_size=1, dropout=0.1, hidden_continuous_size=4,
    loss=QuantileLoss(), log_interval=-1, optimizer="adam", reduce_on_plateau_patience=2,
)  # fmt: skip
trainer = pl.Trainer(
    max_epochs=5, accelerator="cpu", gradient_clip_val=0.1, limit_train_batches=6, enable_progress_bar=False,
    callbacks=[pl.callbacks.EarlyStopping("val_loss", patience=3), pl.callbacks.LearningRateMonitor()],
)  # fmt: skip
trainer.fit(model, train.to_dataloader(batch_size=16), valid.to_dataloader(train=False, batch_size=16))
path = trainer.checkpoint_callback.best_model_path
best = TemporalFusionTransformer.load_from_checkpoint(path, weights_only=False)
end(model.state_dict(), best.state_dict())
