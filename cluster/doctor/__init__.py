"""Why consecutive prompts share less than they could: a linter for captured requests."""
