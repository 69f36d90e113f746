"""Mechanisms that are here to be compared with. Never a choice."""
