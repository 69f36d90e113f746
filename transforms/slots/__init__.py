"""When slots open and close, which are to come, and what waits for them."""
