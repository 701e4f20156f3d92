"""From token deltas to text and to protocol events."""
