"""Helpers that many rooms share: checks of values and files, text for the terminal, folders, the machine."""

__version__ = "0.2.0"
"""The package's: here, where nothing is imported."""
