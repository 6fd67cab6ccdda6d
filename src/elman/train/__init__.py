"""Training: from data and a configuration to a run folder that can be resumed bit for bit.

This room knows models and data; it must not know how a plan is made. A task (``tasks``) brings
words, a configuration, data in batches and a model; the way of every run is the same:
data -> stepper -> loop -> checkpoint, metrics, result.
"""
