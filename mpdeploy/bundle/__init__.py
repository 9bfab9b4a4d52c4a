"""Releases: a folder that stands alone, the proof that nothing in it changed, and which one is current."""
