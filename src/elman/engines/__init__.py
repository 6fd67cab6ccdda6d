"""Engines: code generators for one target each. An engine implements a plan and decides nothing."""
