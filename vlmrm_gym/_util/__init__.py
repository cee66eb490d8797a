"""What many rooms share: checks of values and files, text for the terminal, files, folders, the machine."""
