"""Is this node fit to start?  Parsers of vendors' tools, checks, and the gate that runs them."""
