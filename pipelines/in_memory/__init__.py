"""The front door: events in memory or in files to results in memory, by one call of Python."""
