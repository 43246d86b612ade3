"""The small recogniser of `pulsify demo`: synthetic speech, model, training and export."""
