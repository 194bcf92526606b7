"""The package as its users hold it: public names, commands, documentation, wheels."""
