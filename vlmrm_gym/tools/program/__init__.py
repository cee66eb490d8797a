"""Programs before they are rewards: they are verified, and written by a model."""
