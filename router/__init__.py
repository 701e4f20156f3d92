"""The cache-locality router: which replica holds which blocks, and which one should take a request."""
