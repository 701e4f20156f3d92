"""Is `dynamo` the real one? Both are asked in the same random states. Run as a module: it needs Dynamo's wheels."""
