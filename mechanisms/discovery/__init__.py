"""Private partition selection: which keys enough users share to be published."""
