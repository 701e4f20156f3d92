"""A whole cluster in virtual time: traces, engines, event delays and a router, to compare rules of choice."""
