"""sb3-contrib's RecurrentPPO, in CartPole."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import sys

from recorder import Laps
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback


class Recorder(BaseCallback):
    """One line for each update."""

    def _on_training_start(self):
        self.laps = Laps()

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        loss = self.model.logger.name_to_value.get("train/loss")
        if loss is not None:
            self.laps.step(loss)


model = RecurrentPPO(
    "MlpLstmPolicy",
    "CartPole-v1",
    n_steps=256,
    batch_size=256,
    n_epochs=2,
    seed=0,
    device="cpu",
    policy_kwargs={"lstm_hidden_size": 64},
)
model.learn(256 * (int(sys.argv[1]) + 1), callback=Recorder())
