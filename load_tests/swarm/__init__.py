"""Swarms of agents against an endpoint: what they send, when, and what they felt."""
