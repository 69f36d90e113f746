"""A run from events to results: its places, what is checked of them, and how it is run."""
