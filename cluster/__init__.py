"""The cluster: protocols, canonical prompts, model adapters, the ingress and the command line."""
