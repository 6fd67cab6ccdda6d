"""How the tensors of a call lie: checked, packed, and brought into one inner layout."""
