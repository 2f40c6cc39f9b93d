"""Entry point: runs `python -m lance_assets`, the same as the command `lance-assets`."""

import sys

from lance_assets.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
