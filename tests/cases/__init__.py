"""Tables of operator cases that `record_golden` runs through MXNet 1.9.1, a family a file."""
