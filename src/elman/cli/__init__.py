"""The command line. Each file is one command, named after it: `app` finds them."""

from elman.cli.app import main as main
