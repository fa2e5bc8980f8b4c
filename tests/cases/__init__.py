"""Tables of test cases that the `record_*` scripts run through MXNet 1.9.1; one file per family."""
