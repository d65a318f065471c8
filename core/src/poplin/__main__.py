"""``python -m poplin`` is the command ``poplin``."""

import sys

from poplin.cli import main

if __name__ == "__main__":
    sys.exit(main())
