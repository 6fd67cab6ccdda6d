"""Gated recurrent unit with decay, for missing values."""

from elman.frontend.cell import cell
from elman.ops import exp, relu, sigmoid, split, tanh, where


@cell(
    input="x[I], mask[I], delta[I]",
    state="h[H], last[I]",
    weights="W[3H, I], R[3H, H], V[3H, I], b[3H], gx[I], bx[I], Gh[H, I], bh[H]",
    constants="mean[I]",
    source="Che, Purushotham, Cho, Sontag & Liu 2018, arXiv:1606.01865",
)
def gru_d(x, mask, delta, h, last, W, R, V, b, gx, bx, Gh, bh, mean):
    """A missing value decays from the last one to the mean; the state decays with the gaps.

    ``mask`` [I] is 1 where x is known, ``delta`` [I] the time since it last was; x may be anything,
    NaN too, where it is not. ``mean`` [I], the training data's, is given with the module. Gates in
    the order r, z, n, reset before the product.
    """
    keep = exp(-relu(gx * delta + bx))
    has_value = mask > 0
    imputed = keep * last + (1 - keep) * mean
    last = where(has_value, x, last)
    x = where(has_value, x, imputed)
    h = exp(-relu(Gh @ delta + bh)) * h
    xr, xz, xn = split(W @ x + V @ mask + b, 3)
    Rr, Rz, Rn = split(R, 3)
    r, z = sigmoid(xr + Rr @ h), sigmoid(xz + Rz @ h)
    return (1 - z) * h + z * tanh(xn + Rn @ (r * h)), last
