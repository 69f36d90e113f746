"""The local setting: devices report, really or played, and a server releases."""
