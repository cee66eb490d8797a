"""Episodes and transitions: what is kept of them, rewards that arrive late, datasets, videos."""
