"""Two models of one call, which makes a trainer for each."""

import numpy
import pandas
from around import end
from neuralforecast import NeuralForecast
from neuralforecast.models import LSTM, NHITS

noise, time = numpy.random.default_rng(0), numpy.arange(120)
days = pandas.date_range("2020-01-01", periods=120)
series = [{"unique_id": str(i), "ds": days, "y": numpy.sin(time / 5 + i) + noise.normal(0, 0.1, 120)} for i in range(4)]
given = {"h": 6, "input_size": 18, "max_steps": 20, "val_check_steps": 7, "early_stop_patience_steps": 2}
given.update(accelerator="cpu", enable_progress_bar=False, enable_checkpointing=True, batch_size=2)
models = [NHITS(windows_batch_size=16, **given), LSTM(encoder_hidden_size=8, decoder_hidden_size=8, **given)]
forecast = NeuralForecast(models=models, freq="D")
forecast.fit(pandas.concat([pandas.DataFrame(each) for each in series], ignore_index=True), val_size=12)
end(*(model.state_dict() for model in forecast.models))
