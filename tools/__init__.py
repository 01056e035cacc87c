"""Scripts that make files shipped with pybatcher. Not part of the installed package."""
