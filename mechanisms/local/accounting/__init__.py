"""What every user of a population reported and spent."""
