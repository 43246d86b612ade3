"""Results about the whole stream, and values made of its first frames."""
