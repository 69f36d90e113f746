"""What was spent and what may be: filters, the last door of every release, and ledgers."""
