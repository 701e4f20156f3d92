"""The workers: engines, their KV events as hash-only frames, and the Ray Serve replica around them."""
