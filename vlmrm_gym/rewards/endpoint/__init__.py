"""Vision-language models behind OpenAI-compatible servers: requests, answers, budgets. No rewards, and no pairs."""
