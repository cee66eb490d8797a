"""Paints the pictures of the worlds, which are files of the package: `python -m painting`. Not installed."""
