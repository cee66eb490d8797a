"""Makes the bundled model, and measures it: `python -m bundled_model.train`. Not part of the installed package."""
