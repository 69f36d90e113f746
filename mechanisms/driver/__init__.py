"""A stream of releases, slot by slot: a mechanism, its noise and the filter."""
