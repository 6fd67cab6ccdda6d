"""Side-by-side measurements: a suite of cases, each in a process of its own, one row each.

Reading order: ``suites/`` (what is asked), ``cases`` (one case), ``problem`` and ``contestants``
(what is computed, and by whom), ``measures/`` and ``studies/`` (what is measured), ``worker`` (one
case in a process), ``running`` (all of them), ``rows`` (on disk), ``table``, ``report`` and
``pages`` (rows for people).
"""
