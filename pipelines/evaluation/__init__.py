"""Comparing mechanisms: streams to try them on, what is measured, tables and a page."""
