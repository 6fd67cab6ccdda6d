"""What tells one machine from another."""

from __future__ import annotations

import pytest

from elman.train.run.run import machine_facts
from elman.tuning import facts

X86 = """\
processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8481C: 2.70GHz

processor	: 1
model name	: another
"""
ARM = """\
processor	: 0
BogoMIPS	: 50.00
Features	: fp asimd
CPU implementer	: {implementer}
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0c
CPU revision	: 1
"""


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (X86, "Intel(R) Xeon(R) Platinum 8481C: 2.70GHz"),
        (ARM.format(implementer="0x41"), "ARM 0x41 part 0xd0c variant 0x3"),
        ("CPU part : 0xd0c\n", "ARM ? part 0xd0c variant ?"),
        ("hart : 0\nisa : rv64gc\n", ""),
        ("", ""),
    ],
)
def test_the_name_of_a_processor(cpuinfo, name):
    """Linux tells a name on x86, numbers on ARM, and sometimes neither."""
    assert facts.named_in(cpuinfo) == name


def test_parts_of_two_designers_are_two_processors():
    """Numbers of parts are their designer's own, and choices are kept for a processor."""
    names = {facts.named_in(ARM.format(implementer=number)) for number in ("0x41", "0x61")}
    assert len(names) == 2


def test_a_run_names_the_processor_that_choices_are_kept_for():
    assert machine_facts()["processor"] == facts.processor() != ""
