"""`python -m worldsize` is the command line."""

import sys

from worldsize.cli import main

if __name__ == "__main__":
    sys.exit(main())
