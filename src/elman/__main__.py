"""`python -m elman` is the command `elman`."""

from elman_command import main

if __name__ == "__main__":
    main()
