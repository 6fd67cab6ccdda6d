"""Steps written in torch's operations: traced once, read as the formula of a cell."""
