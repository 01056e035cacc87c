"""Speed, measured: nothing here is part of the installed package."""
