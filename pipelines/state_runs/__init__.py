"""Runs that keep their state in a folder, and release slots as they close, pass by pass."""
