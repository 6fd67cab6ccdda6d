"""How long this process's threads wanted a core and had none: what another program took."""

from __future__ import annotations

import os
from pathlib import Path

_THREADS = Path("/proc/self/task")


def waited_s() -> float | None:
    """Time that all threads of this process have waited for a core so far (s).

    Returns:
        None where the system does not say (other than Linux): then nothing is known about load.
    """
    total = 0
    try:
        threads = os.listdir(_THREADS)
    except OSError:
        return None
    for thread in threads:
        try:
            total += int((_THREADS / thread / "schedstat").read_bytes().split()[1])
        except FileNotFoundError:  # it has ended
            continue
        except (OSError, ValueError, IndexError):
            return None
    return total * 1e-9
