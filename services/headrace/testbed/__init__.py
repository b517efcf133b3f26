"""Networks made on this machine, for those who measure and for those who break things."""
