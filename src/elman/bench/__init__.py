"""Side-by-side measurements: a suite of cases, each in a process of its own, one row each.

Reading order: ``suites/`` (what is asked), ``cases`` (one case), ``problem`` and ``contestants``
(what is computed, and by whom), ``timing``, ``training`` and ``starting`` (what is measured),
``worker`` (one case in a process), ``running`` (all of them), ``results`` (rows on disk), ``table``
and ``readme`` (rows for people).
"""
