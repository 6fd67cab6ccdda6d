"""pytorch-forecasting's DeepAR, whose LSTM is a subclass of torch's, on waves."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import sys

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from pytorch_forecasting import DeepAR, TimeSeriesDataSet
from recorder import recorder

pl.seed_everything(0)
rng, T = np.random.default_rng(0), 300
frame = pd.concat(
    pd.DataFrame(
        {
            "t": np.arange(T),
            "y": np.sin(np.arange(T) / 7 + k) + rng.normal(0, 0.1, T),
            "k": str(k),
        }
    )
    for k in range(8)
)
frame = frame.reset_index(drop=True)
data = TimeSeriesDataSet(
    frame,
    time_idx="t",
    target="y",
    group_ids=["k"],
    max_encoder_length=72,
    max_prediction_length=24,
    time_varying_unknown_reals=["y"],
)
model = DeepAR.from_dataset(data, hidden_size=64, rnn_layers=2, dropout=0.0, log_interval=-1)
pl.Trainer(
    max_steps=int(sys.argv[1]),
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[recorder(pl.Callback)],
).fit(model, data.to_dataloader(train=True, batch_size=32, num_workers=0))
