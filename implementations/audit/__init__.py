"""The convention auditor: tiny probes find out what an unknown callable is. `python -m implementations.audit -h`."""
