"""Discovery: finds out what an unknown callable is, as a candidate to judge or as a written adapter."""
