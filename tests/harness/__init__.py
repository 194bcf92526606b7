"""The machinery between clauses and verdicts: plan, judge, compare, record, report."""
