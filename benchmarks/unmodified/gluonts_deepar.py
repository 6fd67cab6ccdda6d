"""GluonTS' DeepAR, on waves."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import sys

import lightning.pytorch as pl
import numpy as np
from gluonts.dataset.common import ListDataset
from gluonts.torch.model.deepar import DeepAREstimator
from recorder import recorder

rng = np.random.default_rng(0)
np.random.seed(0)
pl.seed_everything(0)
series = [
    {"start": "2020-01-01", "target": np.sin(np.arange(400) / 7 + k) + rng.normal(0, 0.1, 400)}
    for k in range(8)
]
DeepAREstimator(
    freq="h",
    prediction_length=24,
    context_length=72,
    num_layers=2,
    hidden_size=64,
    batch_size=32,
    num_batches_per_epoch=int(sys.argv[1]),
    trainer_kwargs={
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "callbacks": [recorder(pl.Callback)],
    },
).train(ListDataset(series, freq="h"))
