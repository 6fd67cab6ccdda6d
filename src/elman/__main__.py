"""`python -m elman` is the command `elman`."""

from elman.cli.app import main

if __name__ == "__main__":
    main()
