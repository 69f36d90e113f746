"""From counts of slots to private releases."""
