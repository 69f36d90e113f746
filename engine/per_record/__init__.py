"""Statistics of single records: what is read of them, and the drivers that release them."""
