"""A bounded store of KV blocks that the replicas of one node share, and its connector for vLLM."""
