"""Lowered programs: regions with offsets, loops over rows and units, loads, values, stores."""
