"""What goes along with an export and runs without pulsify: each file here is copied as it stands."""
