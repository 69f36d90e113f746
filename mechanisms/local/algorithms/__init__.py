"""Whom to ask in a slot, at what price, and what to make of it."""
