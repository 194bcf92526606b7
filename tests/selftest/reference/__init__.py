"""The reference against a second derivation, and its bounds against styles of computing."""
