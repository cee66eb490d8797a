"""Videos and pictures, read and written."""
