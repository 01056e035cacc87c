"""Tables and plots, made of the results alone."""
