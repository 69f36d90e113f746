"""The page of a run that goes on, for operators: what it shows, and the server that shows it."""
