"""The recurrent state-space model of Dreamer, all of its step in one cell.

The loop is that of dreamerv3-torch (``networks.py``, ``RSSM.observe``) at DreamerV3's small sizes:
per step an input layer over latent and action, a layer-norm GRU, a prior of the state alone and a
posterior that sees the embedding as well, from which 32 latents of 32 classes are sampled with the
gradient of their probabilities (Hafner et al. 2023, arXiv:2301.04104). The noise of the Gumbel-max
trick is an argument, so that all contestants sample the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman.nn
from benchmarks.cases import Case
from benchmarks.users.project import Project, Weights
from elman.frontend.cell import cell
from elman.ops import (
    hardmax,
    layer_norm,
    log,
    sigmoid,
    silu,
    softmax,
    split,
    straight_through,
    tanh,
)

GROUPS, CLASSES, ACTIONS = 32, 32, 6
LATENT = GROUPS * CLASSES
_EPS, _MIX = 1e-3, 0.01  # of a norm; share of the uniform distribution in each latent's


@cell(
    input="e[E], a[A], noise[Z]",
    state="h[H], z[Z]",
    output="post[Z], prior[Z]",
    weights="Wz[H, Z], Wa[H, A], g1[H], b1[H], W[3H, H], R[3H, H], g2[3H], b2[3H], "
    "P[H, H], g3[H], b3[H], Pz[Z, H], pb[Z], Q[H, H], Qe[H, E], g4[H], b4[H], Qz[Z, H], qb[Z]",
)
def rssm(
    e, a, noise, h, z, Wz, Wa, g1, b1, W, R, g2, b2, P, g3, b3, Pz, pb, Q, Qe, g4, b4, Qz, qb
):  # fmt: skip
    """Logits of posterior and prior; the state h and a sample z of the posterior."""
    v = silu(g1 * layer_norm(Wz @ z + Wa @ a, eps=_EPS) + b1)
    r, n, u = split(g2 * layer_norm(W @ v + R @ h, eps=_EPS) + b2, 3)
    u = sigmoid(u - 1)
    h = u * tanh(sigmoid(r) * n) + (1 - u) * h
    prior = Pz @ silu(g3 * layer_norm(P @ h, eps=_EPS) + b3) + pb
    post = Qz @ silu(g4 * layer_norm(Q @ h + Qe @ e, eps=_EPS) + b4) + qb
    chances = (1 - _MIX) * softmax(post, groups=GROUPS) + _MIX / CLASSES
    z = straight_through(hardmax(log(chances) + noise, groups=GROUPS), chances)
    return post, prior, h, z


def _norm_layer(inputs: int, units: int) -> nn.Sequential:
    norm = nn.LayerNorm(units, eps=_EPS)
    return nn.Sequential(nn.Linear(inputs, units, bias=False), norm)


class RSSMLoop(nn.Module):
    """The model as dreamerv3-torch runs it, an operator at a time."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.units = H = case.H
        self.inputs = _norm_layer(LATENT + ACTIONS, H)
        self.gru = _norm_layer(2 * H, 3 * H)
        self.prior, self.prior_logits = _norm_layer(H, H), nn.Linear(H, LATENT)
        self.post = _norm_layer(H + case.input_size, H)
        self.post_logits = nn.Linear(H, LATENT)

    def forward(self, x: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, B, 2 Z] of posterior and prior, and the last state with its latents.

        Args:
            x: embeddings [T, B, E].
            actions: [T, B, A].
            noise: of the samples [T, B, Z].
        """
        h, z = (x.new_zeros(x.shape[1], units) for units in (self.units, LATENT))
        logits: list[Tensor] = []
        for embedding, action, gumbel in zip(x, actions, noise, strict=True):
            v = F.silu(self.inputs(torch.cat((z, action), -1)))
            reset, candidate, update = self.gru(torch.cat((v, h), -1)).chunk(3, -1)
            update = torch.sigmoid(update - 1)
            h = update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * h
            prior = self.prior_logits(F.silu(self.prior(h)))
            post = self.post_logits(F.silu(self.post(torch.cat((h, embedding), -1))))
            latents = post.unflatten(-1, (GROUPS, CLASSES)).softmax(-1)
            chances = (1 - _MIX) * latents + _MIX / CLASSES
            classes = (chances.log() + gumbel.view_as(chances)).argmax(-1)
            sample = F.one_hot(classes, CLASSES) + chances - chances.detach()
            z = sample.flatten(-2)
            logits.append(torch.cat((post, prior), -1))
        return torch.stack(logits), torch.cat((h, z), -1)


class RSSM(nn.Module):
    """The model as one layer of elman's."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.cell = elman.nn.Recurrent(rssm, case.input_size, case.H, A=ACTIONS, Z=LATENT)

    def forward(self, x: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`RSSMLoop`."""
        (post, prior), (h, z) = self.cell((x, actions, noise))
        return torch.cat((post, prior), -1), torch.cat((h, z), -1).squeeze(0)


def _moved(weights: Weights) -> dict[str, Tensor]:
    """Weights of the loop, or their gradients, as the cell has them: a joined matrix is two."""
    H = len(weights["prior.0.weight"])
    Wz, Wa = weights["inputs.0.weight"].split((LATENT, ACTIONS), 1)
    W, R = weights["gru.0.weight"].split(H, 1)
    embedding = weights["post.0.weight"].shape[1] - H
    Q, Qe = weights["post.0.weight"].split((H, embedding), 1)
    parts = {"Wz": Wz, "Wa": Wa, "W": W, "R": R, "Q": Q, "Qe": Qe}
    parts |= {"P": weights["prior.0.weight"]}
    for number, layer in enumerate(("inputs", "gru", "prior", "post"), 1):
        parts |= {f"g{number}": weights[f"{layer}.1.weight"]}
        parts |= {f"b{number}": weights[f"{layer}.1.bias"]}
    for matrix, bias, layer in (("Pz", "pb", "prior_logits"), ("Qz", "qb", "post_logits")):
        parts |= {matrix: weights[f"{layer}.weight"], bias: weights[f"{layer}.bias"]}
    return {f"cell.{name}_l0": weight for name, weight in parts.items()}


def _episode(case: Case, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Actions [T, B, A] from N(0, 1), and Gumbel noise [T, B, Z]."""
    actions = torch.randn(case.T, case.B, ACTIONS, generator=source)
    uniform = torch.rand(case.T, case.B, LATENT, generator=source).clamp_min(1e-20)
    return actions, -torch.log(-torch.log(uniform))


WORLD_MODEL = Project(
    {"loop": RSSMLoop}, RSSM, _episode, moved=_moved, outputs=lambda case: 2 * LATENT
)
