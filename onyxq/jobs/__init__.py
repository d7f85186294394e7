"""Jobs: their model, check, encoding, flow conditions, windows and joins."""
