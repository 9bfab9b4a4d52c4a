"""`python -m mpdeploy`."""

import os
import sys

# Python puts the current folder first: what lies there was not named, and must not be taken for a library.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - nothing is imported yet
if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0]) not in (_OURS, ""):  # noqa: PTH100
    del sys.path[0]

from mpdeploy.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
