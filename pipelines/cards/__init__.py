"""The card of a stream: what was promised, written beside what was released, and checked by it."""
