"""One module per protocol: bytes to a Conversation, output events to the protocol. No IO."""
