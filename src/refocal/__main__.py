"""``python -m refocal``."""

import sys

from refocal.cli import main

if __name__ == "__main__":
    sys.exit(main())
