"""What the commands do, from Python, where it takes several rooms."""
