"""A model of neuralforecast, GRU or DilatedRNN, on waves."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import sys

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast, models
from pytorch_lightning.callbacks import Callback
from recorder import recorder

rng, T = np.random.default_rng(0), 300
days = pd.date_range("2020-01-01", periods=T, freq="D")
frame = pd.concat(
    pd.DataFrame(
        {
            "unique_id": str(k),
            "ds": days,
            "y": np.sin(np.arange(T) / 7 + k) + rng.normal(0, 0.1, T),
        }
    )
    for k in range(8)
)
options = {
    "h": 12,
    "input_size": 72,
    "max_steps": int(sys.argv[2]),
    "encoder_hidden_size": 64,
    "batch_size": 8,
    "random_seed": 0,
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "callbacks": [recorder(Callback)],
}
NeuralForecast([getattr(models, sys.argv[1])(**options)], freq="D").fit(frame)
