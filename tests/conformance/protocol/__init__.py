"""Kvist beside its peers: named behaviours of the protocols, each asked over HTTP and answered with a verdict."""
