"""`python -m mpdeploy`."""

from mpdeploy.cli import main

if __name__ == "__main__":
    main()
