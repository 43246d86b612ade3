"""Models with one result about the whole recording: a keyword classifier and a speaker embedding."""
