"""Generated from proto/headrace/rpc/v1 by `make proto`. Never edited by hand."""
