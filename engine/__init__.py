"""From events to releases without Beam, files or the time of day: what hosts take through slots."""
