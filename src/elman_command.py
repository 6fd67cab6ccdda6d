"""Entry point of the command `elman`: what has to be set before torch and elman are imported.

While they are imported, Ctrl-C ends the command at once: an exception could be lost in what is
being imported. What torch would log comes as an error of the command.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End this process, which has nothing to lose yet."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # read when torch is imported
    from elman.errors import MissingPackageError
    from elman.extras import require

    try:
        for package in ("rich", "typer"):
            require(package, "the command elman")
    except MissingPackageError as error:
        sys.exit(str(error))
    from elman.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
