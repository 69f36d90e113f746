"""What a run says of itself and of its results: plans in words, summary, tables, charts, page."""
