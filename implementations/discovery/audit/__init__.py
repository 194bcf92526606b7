"""The convention auditor: tiny probes find out what an unknown callable is: `attention-conformance audit -h`."""
