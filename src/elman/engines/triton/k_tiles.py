"""An inner dim of products cut into powers of two."""

from __future__ import annotations

from dataclasses import dataclass

from elman.engines.triton.layout import padded

_WASTE, _SMALL = 1 / 8, 64  # padding of an inner dim at most, as a share, if it is not a small one


@dataclass(frozen=True)
class KTile:
    """A part of a product's inner dim of ``size`` units: a power of two from ``start`` on."""

    size: int
    start: int
    length: int

    @property
    def padded(self) -> bool:
        """Whether it reaches beyond the last unit."""
        return self.start + self.length > self.size


def k_tiles(size: int) -> tuple[KTile, ...]:
    """An inner dim as powers of two, with little padding: 1152 is 1024 and 128."""
    tiles: list[KTile] = []
    at = 0
    while at < size:
        rest = size - at
        length = padded(rest)
        if length - rest > _WASTE * size and length > _SMALL:
            length //= 2
        tiles.append(KTile(size, at, length))
        at += length
    return tuple(tiles)
