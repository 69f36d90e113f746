"""Counts to releases: the stage that takes slots in order, and what it drives."""
