"""`python -m lance_assets`, which is `lance-assets`."""

import sys

from lance_assets.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
