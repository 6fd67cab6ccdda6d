"""The command line in this process."""

from __future__ import annotations

import pytest

from elman.cli import main


@pytest.fixture
def elman(capsys):
    """Run a command: elman("train", …) -> (exit code, output, errors)."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run
