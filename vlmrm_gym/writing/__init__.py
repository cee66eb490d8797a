"""Programs that a vision-language model writes: what it is asked, and how failures are fed back to it (VLM-CaR)."""
