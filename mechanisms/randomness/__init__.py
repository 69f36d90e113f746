"""Exact noise by key and slot, and what is drawn with it."""
