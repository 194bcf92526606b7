"""The installed command, `attention-conformance`: in a wheel this package is `attention_conformance`."""
