"""A whole update of CleanRL's recurrent PPO (``cleanrl/ppo_atari_lstm.py`` at commit 004f8a0).

Four passes over a rollout in minibatches of whole environments: the agents of
``examples/projects/cleanrl_ppo.py`` (convolutions on all frames, an LSTM whose state begins anew
with each episode, policy and value), the clipped losses, clipping and Adam. The rollout is random:
images, actions, and episodes that end; what it is makes no difference to the time. ``Case.T`` and
``Case.B`` are steps and environments, ``Case.H`` units of the LSTM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions.categorical import Categorical

import elman.nn
from benchmarks.cases import Case, Way
from benchmarks.measures.training import measure_steps
from benchmarks.problem import Contestant, Problem, Results, draw, gradients
from benchmarks.users.project import ENGINES, example_of, on_engine
from benchmarks.users.resets import flags

EPOCHS, MINIBATCHES = 4, 4
RATE, EPSILON, NORM = 2.5e-4, 1e-5, 0.5
CLIP, ENTROPY, VALUE = 0.1, 0.01, 0.5
CLEANRL = example_of("cleanrl_ppo")
FEATURES: int = CLEANRL.FEATURES


@dataclass(frozen=True, eq=False)
class Rollout:
    """A rollout: tensors [T, B], but for ``frames`` [T, B, pixels]."""

    frames: Tensor
    done: Tensor
    actions: Tensor
    chances: Tensor
    advantages: Tensor
    values: Tensor

    def minibatches(self) -> Iterator[Rollout]:
        """Whole environments, in a new order."""
        return map(self.of, torch.randperm(self.done.shape[1]).chunk(MINIBATCHES))

    def of(self, environments: Tensor) -> Rollout:
        """The rollout of some environments, by their indices."""
        return Rollout(*(getattr(self, field.name)[:, environments] for field in fields(self)))


def loss_of(agent: nn.Module, played: Rollout) -> Tensor:
    """The clipped losses of policy and value, and the policy's entropy."""
    heads, _ = agent(played.frames, played.done)
    policy, value = Categorical(logits=heads[..., :-1]), heads[..., -1]
    ratio = (policy.log_prob(played.actions) - played.chances).exp()
    gain = (played.advantages - played.advantages.mean()) / (played.advantages.std() + 1e-8)
    policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    returns = played.advantages + played.values
    clipped = played.values + (value - played.values).clamp(-CLIP, CLIP)
    value_loss = 0.5 * torch.max((value - returns) ** 2, (clipped - returns) ** 2).mean()
    return policy_loss - ENTROPY * policy.entropy().mean() + VALUE * value_loss


def _agent(case: Case, engine: str = "") -> Any:
    """CleanRL's agent, or that on elman's layer."""
    if not engine:
        return CLEANRL.Before(nn.LSTM(FEATURES, case.H), case.H)
    return on_engine(CLEANRL.After(elman.nn.LSTM(FEATURES, case.H), case.H), engine)


def draw_update(case: Case, seed: int = 0) -> Problem:
    """Draw the agent's weights as torch does; of a rollout there are only advantages dy [T, B]."""
    weights, (advantages,) = draw(partial(_agent, case), case, seed, (case.T, case.B))
    return Problem(case, advantages, advantages, weights)


def _rollout(problem: Problem) -> Rollout:
    case, dtype = problem.case, problem.x.dtype
    source = torch.Generator().manual_seed(case.B)
    size = (case.T, case.B)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=source).to(dtype)

    (done,) = flags(case, source)
    frames = (255 * uniform(*size, CLEANRL.PIXELS**2)).floor()
    actions = torch.randint(CLEANRL.ACTIONS, size, generator=source)
    chances, values = uniform(*size).log(), uniform(*size)
    return Rollout(frames, done.to(dtype), actions, chances, problem.dy, values)


def updated(name: str, problem: Problem) -> Contestant | str:
    """A contestant: the agent with torch's layer in a loop over steps, or with elman's layer."""
    if name not in ("loop", *ENGINES):
        return f"there is no agent {name!r}"
    agent = _agent(problem.case, ENGINES.get(name, ""))
    agent.to(problem.x.dtype).load_state_dict(dict(problem.weights))
    played = _rollout(problem)
    optimizer = torch.optim.Adam(agent.parameters(), RATE, eps=EPSILON)

    def run() -> None:
        for _ in range(EPOCHS):
            for part in played.minibatches():
                optimizer.zero_grad()
                loss_of(agent, part).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimizer.step()

    def results() -> Results:
        part = played.of(torch.arange(problem.case.B // MINIBATCHES))
        loss = loss_of(agent, part)
        grads = torch.autograd.grad(loss, [*agent.parameters()])
        return {"loss": loss.detach()} | gradients(dict(agent.named_parameters()), grads)

    facts = partial(elman.nn.choices, agent) if name in ENGINES else dict
    return Contestant(run, results, tuple(problem.weights), facts)


UPDATE = Way("update", measure_steps, draw_update, updated)
