"""Canonical prompts: a Conversation becomes the same tokens whenever it means the same."""
