"""What the server of the local setting makes of reports, slot by slot."""
