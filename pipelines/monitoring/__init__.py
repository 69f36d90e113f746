"""The condition of a stream, for its operator: status, metrics, and a page from a small server."""
