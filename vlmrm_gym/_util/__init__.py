"""Helpers that many rooms share: checks of values and files, text for the terminal, folders, the machine."""
