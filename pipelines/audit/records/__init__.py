"""Audits of statistics of records: what releases tell of one record."""
