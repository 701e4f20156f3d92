"""Adapters for what core needs from a model: encoder and chat template."""
