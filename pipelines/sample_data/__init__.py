"""Streams and records by name, synthetic and real: to compare mechanisms on, and for the demo."""
