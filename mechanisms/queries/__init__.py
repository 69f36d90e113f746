"""Many queries over one stream of events, answered from one budget."""
