"""The results of a plan: what they are, where they go, and the locks of those places."""
