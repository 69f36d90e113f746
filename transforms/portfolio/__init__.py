"""Many questions over one stream of events, in one pass."""
