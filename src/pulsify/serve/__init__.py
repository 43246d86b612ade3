"""Streams over a websocket: many at once, each exactly what it would be alone. docs/serve.md has the protocol."""
