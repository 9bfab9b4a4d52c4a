"""Who runs a command, for histories."""

import getpass
import os


def user_name() -> str:
    """Return the user's name, or the number where there is none for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
