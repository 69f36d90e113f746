"""What a command says to a person, and hears: lines, progress, errors in plain words, signals."""
