"""Training: from data and a configuration to a run folder that can be resumed bit for bit.

- `loop`: configuration, model and optimizer under way, steps, validations, metrics;
- `run`: the run folder, checkpoints, resuming, results, `elman.load`;
- `distributed`: several processes that train one model;
- `tasks`: what is trained: words, a configuration, data in batches and a model each.

This room knows models and data; it must not know how a plan is made. The way of every run is the
same: data -> stepper -> loop -> checkpoint, metrics, result.
"""
