"""One run under pytest: what is selected, one item a clause, implementation and dtype, and what follows at its end."""
