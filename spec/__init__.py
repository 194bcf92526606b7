"""What must hold: the clauses, the features an implementation may claim, and the cases that check them."""
