"""The auditor: probes of an unknown callable, findings with evidence, and the adapter that is written from them."""
