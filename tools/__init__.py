"""Scripts that make what ships with pybatcher; none of them is part of the installed package."""
