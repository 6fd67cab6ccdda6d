"""Training: from a text and a configuration to a run folder that can be resumed bit for bit.

This room knows models and data; it must not know how a plan is made. The way of a run:
corpus -> vocabulary -> stream -> model -> stepper -> loop -> checkpoint, metrics, result.
"""
