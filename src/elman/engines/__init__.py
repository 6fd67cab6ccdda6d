"""Plan to kernel: the only rooms that know a target. An engine spells a plan and decides
nothing."""
