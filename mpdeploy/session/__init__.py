"""Open any of our files with any runtime that takes it: to call, to run over data, to time."""
