"""darts' RNNModel with a GRU, on a wave."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import sys

import numpy as np
from darts import TimeSeries
from darts.models import RNNModel
from pytorch_lightning.callbacks import Callback
from recorder import recorder

wave = np.sin(np.arange(600) / 5) + np.random.default_rng(0).normal(0, 0.1, 600)
model = RNNModel(
    input_chunk_length=48,
    training_length=96,
    model="GRU",
    hidden_dim=64,
    n_rnn_layers=2,
    batch_size=32,
    random_state=0,
    n_epochs=int(sys.argv[1]),
    pl_trainer_kwargs={
        "max_steps": int(sys.argv[1]),
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "callbacks": [recorder(Callback)],
    },
)
model.fit(TimeSeries.from_values(wave.astype(np.float32)))
