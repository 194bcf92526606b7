"""The process that holds a candidate and answers problems: the judge and what it expects stay elsewhere."""
