"""The command line: one command a file, the only package that prints."""

from mpdeploy.cli.app import main as main
